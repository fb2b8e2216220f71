"""The guard's program: waits for a process, hands signals on to it, and ends as it did. See `guard`.

    python -I -S guard_program.py parent=PID [child=PID …] [-- COMMAND]

It starts beside every rank and every command, so it imports next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False  # what typing has is worth 20 ms of every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

LEFT = 77  # exit status of who left before it was through; torchrun makes 1 of it
LOOKS_S = 0.5  # how often a guard looks whether its parent is still there
LAST_S = 2.0  # what processes that are left behind get to end, before they are killed
ENDS_IT_S = 10.0  # what a launcher gets to end, once it was told
NOT_FOUND = 127  # what a shell says
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def prctl(what: int, value: int) -> None:
    import ctypes  # most guards need none

    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def heard_here() -> list[signal.Signals]:
    """The signals that stop this process. One that was ignored from the start stays ignored: `nohup` means it."""
    return [number for number in HEARD if signal.getsignal(number) is not signal.SIG_IGN]


def _main(words: list[str]) -> NoReturn:
    at = words.index("--") if "--" in words else len(words)
    given, command = dict(each.split("=", 1) for each in words[:at]), words[at + 1 :]
    tree, heard = given["tree"] == "1", [signal.Signals(int(each)) for each in given["heard"].split(",") if each]
    child = _started(command, heard) if command else int(given["child"])
    status = _wait(child, heard, given, tree)
    if tree:
        _end_all()
    code = os.waitstatus_to_exitcode(status)
    if given.get("missing"):
        code = _told(code, given, heard)
    _end_as(code)


def _started(command: list[str], heard: list[signal.Signals]) -> int:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*heard, signal.SIGCHLD])
    child = os.fork()
    if child:
        prctl(SET_CHILD_SUBREAPER, 1)
        return child
    prctl(SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode(errors="replace"))
    os._exit(NOT_FOUND)


def _wait(child: int, heard: list[signal.Signals], given: dict[str, str], tree: bool) -> int:
    """The status with which the copy ends."""
    parent, orders, patience_s = int(given["parent"]), int(given.get("orders", -1)), float(given["patience"])
    until = 0.0
    while True:
        got = signal.sigtimedwait([*heard, signal.SIGCHLD], LOOKS_S)
        while (ended := _reaped()) is not None:
            if ended[0] == child:
                return ended[1]
        # A stop or a debugger that interrupts the wait past its end leaves no signal and any number (CPython to 3.14).
        number = signal.Signals(got.si_signo) if got is not None and got.si_signo in heard else None
        if number is None and not until and os.getppid() != parent:
            number = signal.SIGTERM
        if number is not None:
            until = until or time.monotonic() + patience_s
            if orders >= 0:
                _ignoring_what_is_gone(os.write, orders, bytes([number]))
            else:
                _ignoring_what_is_gone(os.kill, child, number)
        if until and time.monotonic() > until:
            if orders >= 0:  # it is the first of its group
                _ignoring_what_is_gone(os.killpg, child, signal.SIGKILL)
            for pid in {child, *(descendants(os.getpid()) if tree else ())}:
                _ignoring_what_is_gone(os.kill, pid, signal.SIGKILL)


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _told(code: int, given: dict[str, str], heard: list[signal.Signals]) -> int:
    """The exit code that counts, after what the copy has said."""
    words = int(given["words"])
    os.set_blocking(words, False)  # a process that it has left behind may still hold the other end
    try:
        said = os.read(words, 1 << 16).decode().split()
    except BlockingIOError:
        said = []
    if code == 0:
        code = int(said[-2]) if said else LEFT
    if not said and code == LEFT:
        _ignoring_what_is_gone(os.write, 2, f"{given['missing']}\n".encode())
    agent = int(given["agent"])
    if agent and code and said and said[-1] == "1" and os.getppid() == agent:
        if given["leads"] == "1":
            _ignoring_what_is_gone(os.kill, agent, signal.SIGTERM)
        signal.sigtimedwait(heard, ENDS_IT_S)  # it signals those that it has started
    return code


def _end_all() -> None:
    """End what is left below this process: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + LAST_S
        asked: set[int] = set()
        while (left := descendants(os.getpid())) and time.monotonic() < until:
            for pid in left - asked:
                _ignoring_what_is_gone(os.kill, pid, number)
            asked |= left
            time.sleep(0.02)
            while _reaped() is not None:
                pass


def _end_as(code: int) -> NoReturn:
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the copy's
        number = signal.Signals(-code)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        code = 128 - code
    os._exit(code)


def descendants(pid: int) -> set[int]:
    """Every living process that descends from one, by /proc; a zombie holds nothing and does not count."""
    from pathlib import Path

    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                # `pid (name, which may hold anything) state parent …`
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while grown := {each for each, parent in parents.items() if parent in found | {pid}} - found:
        found |= grown
    return found


def _ignoring_what_is_gone(call: Callable[..., object], *arguments: object) -> None:
    try:  # noqa: SIM105  # contextlib is one import more
        call(*arguments)
    except OSError:
        pass


if __name__ == "__main__":
    _main(sys.argv[1:])
