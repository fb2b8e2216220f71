"""Runs a module as `python -m` does, in a fork of an interpreter that has imported torch, its compiler and the
reference, and has compiled nothing and trained nothing. The imports of a fresh interpreter take three to four seconds.

A question and its answer are a line of JSON each.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from contracts.instruments import accelerator
from contracts.spec.interpreter import python
from contracts.stacks.forked_call import exit_code
from contracts.stacks.line_process import Running

_NO_GRAPHS = {
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1",
}  # fmt: skip
"""Read when the compiler is imported. Not FORCE_DISABLE_CACHES: with it inductor asks the C++ compiler anew which
instructions the processor has, 9 of the 15 s that one operation takes, and has the same source translated that it had a
minute ago."""
_FOR_FORKS = (
    "torch._inductor.compile_fx", "contracts.stacks.reference.parallel.parallel_trainer",
    "contracts.stacks.reference.stack",
)  # fmt: skip
"""What takes the seconds. Nothing here uses it: the forks find it imported."""
_STREAMS = ("in", "out", "err")


class Asked(TypedDict):
    """A module and its arguments, what it reads from standard input, its variables and its folder."""

    words: Sequence[str]
    said: str
    environment: Mapping[str, str]
    folder: str | None


class Done(NamedTuple):
    """How a module ended, as of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def run(asked: Asked, *, seconds: float) -> Done:
    """Raises `Failed` where there is no end in time."""
    kept = _server(os.getpid())
    try:
        answer = kept.exchange(json.dumps(asked).encode() + b"\n", seconds=seconds, limit=1 << 24, last=False)
    except BaseException:  # an alarm too: it is in the middle of an answer
        kept.end()
        _server.cache_clear()
        raise
    return Done(*json.loads(answer))


@functools.cache
def _server(owner: int) -> Running:
    """The interpreter of this process; a fork of it has another."""
    running = Running(python("-W", "ignore", "-m", __name__), None, {**os.environ, **_NO_GRAPHS})
    atexit.register(running.end)
    return running


def main() -> None:
    accelerator.ask_nvml()  # the compiler asks for a device when it is imported
    for module in _FOR_FORKS:
        importlib.import_module(module)
    devices = sys.modules["torch"].cuda.device_count()
    gc.freeze()  # a collection in a fork would touch, and so duplicate, every page
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is said is no answer
    for line in sys.stdin:
        asked: Asked = json.loads(line)
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place, name) for name in _STREAMS]
            files[0].write_text(asked["said"], encoding="utf-8")
            child = os.fork()
            if child == 0:
                _fork(asked, files, devices)
            _, status = os.waitpid(child, 0)
            said = [each.read_text(encoding="utf-8", errors="replace") for each in files[1:]]
        answers.write(json.dumps([os.waitstatus_to_exitcode(status), *said]) + "\n")
        answers.flush()


def _fork(asked: Asked, files: list[Path], devices: int) -> None:
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
    code, ended = 1, None
    try:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # the old one has read ahead
        os.environ.clear()
        os.environ.update(asked["environment"])
        if asked["folder"] is not None:
            os.chdir(asked["folder"])
        sys.argv = list(asked["words"])
        if devices and accelerator.lost():  # an import has asked CUDA: only a new interpreter has a device
            command = python("-W", "ignore", "-m", *sys.argv)
            os.execv(command[0], command)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except BaseException as error:
        ended = error
    try:
        code = exit_code(ended)
        # Private in Python 3.11 to 3.14: an interpreter waits for its threads at its end, and `os._exit` for none.
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
