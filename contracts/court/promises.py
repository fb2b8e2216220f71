"""What the suite promises of itself: each statement with the tests of the suite that hold it.

The ids are the law's. No stack is asked about them: they are no contracts, and no report lists them. The table
is `promises.toml`; `docs/promises.md` is written from it by `python -m contracts.court.promises docs/promises.md`, and
a test compares the two and looks up each test.
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.spec import codec

FAMILY = "GATE"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One promise.

    Args:
        tests: `tests_unit/FILE.py::NAME` of the tests that hold it.
        lacks: what of it no test holds; empty if nothing.
        bugs: the catalogued bugs of gates that these tests notice.
    """

    statement: str
    tests: tuple[str, ...] = ()
    lacks: str = ""
    bugs: tuple[str, ...] = ()

    @property
    def held_by(self) -> str:
        return "\n  ".join(["held by", *self.tests]) if self.tests else "no test holds it"


def _read() -> Mapping[str, Promise]:
    text = Path(__file__).with_name("promises.toml").read_text(encoding="utf-8")
    return {id: codec.decode(Promise, body, name=id) for id, body in tomllib.loads(text).items()}


PROMISES = _read()

HEAD = """# What the suite promises of itself

Generated from `contracts/court/promises.toml`; `make snapshots` writes it anew. These are no contracts of a stack: no
report lists them, and a profile cannot name them. The suite's own tests hold them (`make test`), and a test makes sure
that each one named here exists. `rankproof explain GATE-04` prints one of them.
"""


def page() -> str:
    """The promises as Markdown."""
    lines = [HEAD, "| id | promise | held by | not held |", "|---|---|---|---|"]
    for id, each in PROMISES.items():
        tests = "<br>".join(f"`{test}`" for test in each.tests)
        lines.append(f"| {id} | {each.statement} | {tests} | {each.lacks} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
