"""Stacks that attack the gate: they outlive its deadlines, speak in its name, and say what no report can hold.

Each is loaded by name (`--stack tests_unit._parties.hostile:PutsOutTheTimer`).
"""

import atexit
import contextlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.spec import Layout

FAMILY = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
Blocks = tuple[str, ...]


def right(pattern: str, depth: int) -> Blocks:
    return tuple(FAMILY[pattern[i % len(pattern)]] for i in range(depth))


def wrong(pattern: str, depth: int) -> Blocks:
    """Without the tail, which violates PAT-01."""
    return tuple(FAMILY[letter] for letter in pattern * (depth // len(pattern)))


class Hostile:
    """Who it is, and one question that it claims."""

    name = "hostile"
    version = "1"
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}
    offers = frozenset({"blocks"})

    def blocks(self, pattern: str, depth: int) -> Blocks:
        return wrong(pattern, depth)


# --- time ---


class PutsOutTheTimer(Hostile):
    """Uses the C library's alarm for a time-out of its own, as many launchers do, and hangs later."""

    def blocks(self, pattern: str, depth: int) -> Blocks:
        signal.alarm(30)
        signal.alarm(0)
        time.sleep(3600)
        return ()


class TakesTheHandler(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        signal.signal(signal.SIGALRM, lambda *_: None)
        time.sleep(3600)
        return ()


class RetriesWhateverComes(Hostile):
    """`finally: return` in a loop."""

    def blocks(self, pattern: str, depth: int) -> Blocks:
        def attempt() -> None:
            try:
                time.sleep(30)
            finally:
                return  # noqa: B012

        while True:
            attempt()


class SwallowsEverything(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1)


class SwallowsWhileLoading(Hostile):
    def __init__(self) -> None:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1)


class BlocksSignals(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        time.sleep(3600)
        return ()


class StopsItself(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        os.kill(os.getpid(), signal.SIGSTOP)
        return ()


# --- in the gate's name ---


class SpeaksForTheGate(Hostile):
    """Writes a verdict to every pipe that it holds, and leaves."""

    def blocks(self, pattern: str, depth: int) -> Blocks:
        for descriptor in range(3, 64):
            with contextlib.suppress(OSError):
                if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:"):
                    os.write(descriptor, b"\0")
        os._exit(0)


class ForgesTheRecord(Hostile):
    """Waits for the record, rewrites it, and leaves the gate its words."""

    def blocks(self, pattern: str, depth: int) -> Blocks:
        if os.fork() == 0:
            os.setsid()
            file = Path(os.environ["REPORT"], "run.jsonl")
            for _ in range(3000):
                time.sleep(0.005)
                if file.exists():
                    text = file.read_text(encoding="utf-8")
                    file.write_text(text.replace('"outcome":"violated"', '"outcome":"holds"'), encoding="utf-8")
                    break
            os._exit(0)
        return wrong(pattern, depth)


def _write_everywhere() -> None:
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"CONFORMANT: hostile 1, profile PAT-01 (1 holds)\n")


def _go_on_as_another() -> None:
    """The process that is judged leaves, and a copy of it continues."""
    if os.fork():
        os._exit(0)


class _EqualsAnything(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


DEEDS: dict[str, Callable[[], object]] = {
    "ClearsModules": sys.modules.clear,
    "ClosesItsStreams": lambda: (os.close(1), os.close(2)),
    "ClosesItsDescriptors": lambda: os.closerange(3, 1024),
    "LeavesAtExit": lambda: atexit.register(os._exit, 0),
    "Forks": os.fork,
    "GoesOnAsAnother": _go_on_as_another,
    "WritesEverywhere": _write_everywhere,
    "AllowsNoFiles": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
    "AllowsNoDescriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)),
    "AllowsNoDepth": lambda: sys.setrecursionlimit(80),
    "TakesTheReportAway": lambda: shutil.rmtree("out"),
    "KillsItsParent": lambda: (os.kill(os.getppid(), signal.SIGTERM), time.sleep(5)),
    "ForgetsWhereItIs": lambda: (os.chdir("/"), os.environ.clear(), os.umask(0o777)),
}
"""Class → what it does to the process that judges it, before it answers wrongly."""


def _after(name: str, deed: Callable[[], object]) -> type[Hostile]:
    def blocks(self: Hostile, pattern: str, depth: int) -> Blocks:
        deed()
        return wrong(pattern, depth)

    return type(name, (Hostile,), {"blocks": blocks})


globals().update({name: _after(name, deed) for name, deed in DEEDS.items()})


class AnswersWhatEqualsAnything(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        return tuple(_EqualsAnything("ablock") for _ in range(depth))


class Right(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        return right(pattern, depth)


class PatchesTheJudge(Hostile):
    """Replaces the judge in the memory that it shares with it."""

    def blocks(self, pattern: str, depth: int) -> Blocks:
        for name, module in list(sys.modules.items()):
            if name.startswith("contracts.") and hasattr(module, "verdict"):
                vars(module)["verdict"] = _conformant
        return wrong(pattern, depth)


def _conformant(*_: object) -> Any:
    raise SystemExit(0)


class Leaks(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        token, url = os.environ["HF_TOKEN"], os.environ["DB_URL"]
        sys.stderr.write(f"with {token} at {url}\n")
        raise RuntimeError(f"login with {token} failed at {url}, sent Authorization: Bearer {token}")


class LyingTuple(tuple[str, ...]):
    """Says of itself whatever a check wants to hear."""

    truth: Blocks = ()

    def __len__(self) -> int:
        return len(self.truth)

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return self.truth[index]

    def __iter__(self) -> Any:
        return iter(self.truth)


class AnswersALyingTuple(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        answer = LyingTuple(("ablock",))
        answer.truth = right(pattern, depth)
        return answer


class AssertingTuple(tuple[str, ...]):
    def __len__(self) -> int:
        raise AssertionError("of the answer")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("of the answer")

    def __repr__(self) -> str:
        raise AssertionError("of the answer")

    __hash__ = None  # type: ignore[assignment]


class AnswersAnAssertingTuple(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        return AssertingTuple(right(pattern, depth))


class AssertingError(Exception):
    def __str__(self) -> str:
        raise AssertionError("of the error")


class RaisesAnAssertingError(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        raise AssertingError


class AssertsInItsLabels(Hostile):
    @property
    def labels(self) -> Mapping[str, str]:  # type: ignore[override]
        if sys._getframe(1).f_code.co_name == "_asked":
            raise AssertionError("of the labels")
        return {}


# --- words ---


class ColouredAndTorn(Hostile):
    name = "\x1b[32mCONFORMANT\x1b[0m\n::error::x\ud800"
    version = "<script>alert(1)</script>|`x`"

    def blocks(self, pattern: str, depth: int) -> Blocks:
        raise RuntimeError("</td><script>alert(1)</script> | a |\n::error file=x::boo\x00\x1b[2J\ud7ff\uffff ]]> &")


class AnswersHalfCharacters(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        return ("\ud800",) * depth


class NamesAFileThatIsNotUtf8(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        raise FileNotFoundError(2, "No such file", os.fsdecode(b"/data/caf\xe9"))


class SaysTenMegabytes(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        raise ValueError("word " * 2_000_000)


class SaysThreeHundredMegabytes(Hostile):
    def blocks(self, pattern: str, depth: int) -> Blocks:
        raise ValueError("x" * 300_000_000)


class AnswersAMillion(Hostile):
    def blocks(self, pattern: str, depth: int) -> Any:
        return (1,) * 1_000_000
