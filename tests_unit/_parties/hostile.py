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


def raises(error: BaseException) -> Callable[..., Any]:
    def answer(*_: object) -> Any:
        raise error

    return answer


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


def _puts_out_the_timer() -> None:
    """Uses the C library's alarm for a time-out of its own, as many launchers do, and hangs later."""
    signal.alarm(30)
    signal.alarm(0)
    time.sleep(3600)


def _takes_the_handler() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    time.sleep(3600)


def _retries_whatever_comes() -> None:
    """`finally: return` in a loop."""

    def attempt() -> None:
        try:
            time.sleep(30)
        finally:
            return  # noqa: B012

    while True:
        attempt()


def _swallows_everything(*_: object) -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1)


def _blocks_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    time.sleep(3600)


# --- in the gate's name ---


def _speaks_for_the_gate() -> None:
    """Writes a verdict to every pipe that it holds, and leaves."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:"):
                os.write(descriptor, b"\0")
    os._exit(0)


def _forges_the_record() -> None:
    """Waits for the record, rewrites it, and leaves the gate its words."""
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


def _write_everywhere() -> None:
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"CONFORMANT: hostile 1, profile PAT-01 (1 holds)\n")


def _go_on_as_another() -> None:
    """The process that is judged leaves, and a copy of it continues."""
    if os.fork():
        os._exit(0)


def _patches_the_judge() -> None:
    """Replaces the judge in the memory that it shares with it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("contracts.") and hasattr(module, "verdict"):
            vars(module)["verdict"] = raises(SystemExit(0))


def _leaks() -> None:
    token, url = os.environ["HF_TOKEN"], os.environ["DB_URL"]
    sys.stderr.write(f"with {token} at {url}\n")
    raise RuntimeError(f"login with {token} failed at {url}, sent Authorization: Bearer {token}")


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
OTHER_DEEDS: dict[str, Callable[[], object]] = {
    "PutsOutTheTimer": _puts_out_the_timer,
    "TakesTheHandler": _takes_the_handler,
    "RetriesWhateverComes": _retries_whatever_comes,
    "SwallowsEverything": _swallows_everything,
    "BlocksSignals": _blocks_signals,
    "StopsItself": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "SpeaksForTheGate": _speaks_for_the_gate,
    "ForgesTheRecord": _forges_the_record,
    "PatchesTheJudge": _patches_the_judge,
    "Leaks": _leaks,
}
"""Likewise; each of these is expected to end in its own way."""


class _EqualsAnything(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


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


def _lies(pattern: str, depth: int) -> Blocks:
    answer = LyingTuple(("ablock",))
    answer.truth = right(pattern, depth)
    return answer


class AssertingTuple(tuple[str, ...]):
    __len__ = __eq__ = __repr__ = raises(AssertionError("of the answer"))
    __hash__ = None  # type: ignore[assignment]


class AssertingError(Exception):
    __str__ = raises(AssertionError("of the error"))


# --- words ---


ANSWERS: dict[str, Callable[[str, int], Any]] = {
    **{name: lambda pattern, depth, deed=deed: (deed(), wrong(pattern, depth))[1]
       for name, deed in (DEEDS | OTHER_DEEDS).items()},
    "Right": right,
    "AnswersWhatEqualsAnything": lambda pattern, depth: (_EqualsAnything("ablock"),) * depth,
    "AnswersALyingTuple": _lies,
    "AnswersAnAssertingTuple": lambda pattern, depth: AssertingTuple(right(pattern, depth)),
    "RaisesAnAssertingError": raises(AssertingError()),
    "AnswersHalfCharacters": lambda pattern, depth: ("\ud800",) * depth,
    "NamesAFileThatIsNotUtf8": raises(FileNotFoundError(2, "No such file", os.fsdecode(b"/data/caf\xe9"))),
    "SaysTenMegabytes": lambda pattern, depth: raises(ValueError("word " * 2_000_000))(),
    "SaysThreeHundredMegabytes": lambda pattern, depth: raises(ValueError("x" * 300_000_000))(),
    "AnswersAMillion": lambda pattern, depth: (1,) * 1_000_000,
    "ColouredAndTorn": raises(
        RuntimeError("</td><script>alert(1)</script> | a |\n::error file=x::boo\x00\x1b[2J\ud7ff\uffff ]]> &")
    ),
}  # fmt: skip
"""Class → its answer to `blocks`, the one question that it claims."""
MORE: dict[str, dict[str, Any]] = {
    "ColouredAndTorn": {"name": "\x1b[32mCONFORMANT\x1b[0m\n::error::x\ud800",
                        "version": "<script>alert(1)</script>|`x`"},
}  # fmt: skip
"""Class → what it says of itself."""


def _made(name: str, answer: Callable[[str, int], Any]) -> type[Hostile]:
    blocks = lambda self, pattern, depth: answer(pattern, depth)  # noqa: E731
    return type(name, (Hostile,), {"blocks": blocks, **MORE.get(name, {})})


globals().update({name: _made(name, answer) for name, answer in ANSWERS.items()})
SwallowsWhileLoading = type("SwallowsWhileLoading", (Hostile,), {"__init__": _swallows_everything})


class AssertsInItsLabels(Hostile):
    @property
    def labels(self) -> Mapping[str, str]:  # type: ignore[override]
        if sys._getframe(1).f_code.co_name == "_asked":
            raise AssertionError("of the labels")
        return {}
