"""Runs a script on several ranks of this machine and observes it, as torchrun would, again and again.

A launcher and two ranks of their own take ten seconds of imports before the script has done anything. This process
imports once, and its forks are the ranks. A line on standard input has the words of a script in the first folder
given, the folder for the trace, and how many ranks; the answer is a line with their exit codes.
"""

import contextlib
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from contracts.instruments import accelerator
from contracts.stacks.forked_call import exit_code

GRACE_S = 10.0  # from SIGTERM to SIGKILL, for the peers of a rank that failed


class Job(TypedDict):
    """A script with its arguments, the folder in which it runs, that of its trace, the number of ranks, and how long
    they may take."""

    words: list[str]
    folder: str
    trace: str
    ranks: int
    seconds: float


def main() -> None:
    accelerator.ask_nvml()
    import torch._dynamo  # which the first optimizer imports
    import torch.distributed

    import contracts.observe.recorder

    assert torch.distributed
    assert contracts.observe.recorder
    gc.freeze()  # a collection in a fork would touch, and so duplicate, every page
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_codes(json.loads(line))) + "\n")
        sys.stdout.flush()


def _codes(job: Job) -> list[int]:
    """The exit codes of the ranks. As of torchrun, one that fails takes its peers with it. Ranks that do not end are
    aborted, and say where they were."""
    with _port() as port:
        running = {_forked(job, rank, port): rank for rank in range(job["ranks"])}
        codes: dict[int, int] = {}
        limit, asked = time.monotonic() + job["seconds"], False
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > limit:
                _send(signal.SIGKILL if asked else signal.SIGABRT, running)
                limit, asked = time.monotonic() + GRACE_S, True
            else:
                time.sleep(0.02)
            if not asked and any(codes.values()):
                _send(signal.SIGTERM, running)
                limit, asked = min(limit, time.monotonic() + GRACE_S), True
    return [code for _, code in sorted(codes.items())]


def _send(number: signal.Signals, running: dict[int, int]) -> None:
    for pid in running:
        os.kill(pid, number)  # not waited for yet, so that the number is still its own


@contextlib.contextmanager
def _port() -> Iterator[int]:
    """A port for the ranks to meet at. Held, without listening, so that nobody else is given it meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


def _forked(job: Job, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code, ended = 1, None
    try:
        _observe(job, rank, port)
    except BaseException as error:
        # Kept with its frames: a process group that is taken down with them waits, now and then for ever, for a thread.
        ended = error
    try:
        code = exit_code(ended)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _observe(job: Job, rank: int, port: int) -> None:
    from contracts.observe.entry import Script
    from contracts.observe.started import Options

    os.chdir(job["folder"])
    for number, name in ((0, os.devnull), (1, os.devnull), (2, f"stderr-{rank}")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    faulthandler.enable()
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": job["ranks"],
             "LOCAL_WORLD_SIZE": job["ranks"], "MASTER_ADDR": "localhost", "MASTER_PORT": port}  # fmt: skip
    os.environ.update({name: str(value) for name, value in place.items()})
    script = Script(job["words"])
    script.observe(Options(out=Path(job["trace"])))
    script.run()


if __name__ == "__main__":
    main()
