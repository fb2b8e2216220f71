"""`python -m rankproof`, and the command `rankproof`."""

from __future__ import annotations

import sys

from rankproof import suite

BAD_INPUT = 2  # contracts.spec.records, which cannot be imported where this is said


def main() -> None:
    try:
        suite.load()
    except suite.Clash as error:
        sys.stderr.write(f"rankproof: {error}\n")
        sys.exit(BAD_INPUT)
    from contracts.harness.cli import main as command

    command(prog_name="rankproof")


if __name__ == "__main__":
    main()
