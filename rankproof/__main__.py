"""`python -m rankproof`, and the command `rankproof`."""

import contextlib
import os
import sys
import traceback

from rankproof import suite

BAD_INPUT, BROKEN, INTERRUPTED = 2, 4, 130  # contracts.spec.records has them, which may not be importable here


def main() -> None:
    """Whatever escapes a command says nothing about a stack: 4, and never 1, with which Python ends by itself."""
    open_what_is_closed()
    try:
        suite.load()
        from contracts.harness.cli import main as command

        command(prog_name="rankproof")
    except suite.Clash as error:
        _end(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except Exception as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        _end(f"the command itself failed, which says nothing about a stack: {type(error).__name__}: {error}", BROKEN)


def open_what_is_closed() -> None:
    """Standard streams that the caller has closed (`>&-`) become the null device: a file that is opened later would
    otherwise get their number, and with it what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, and lower ones are open by now
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _end(words: str, code: int) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"rankproof: {words}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
