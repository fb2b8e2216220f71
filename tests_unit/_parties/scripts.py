"""Scripts in the interpreters of other environments, as `python -W ignore SCRIPT` runs them, but each in a fork of a
process that has imported torch: that is most of what one takes.

This file is both ends; what another interpreter runs of it needs only the standard library.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 280.0
Run = Callable[[Path, Path], subprocess.CompletedProcess[str]]


@contextlib.contextmanager
def forked(env: Mapping[str, str], *imported: str) -> Iterator[Run]:
    """Runs an interpreter's scripts; what one says is all in `stdout`. `imported` are modules that every one of them
    imports, or its framework does."""
    servers: dict[Path, subprocess.Popen[str]] = {}

    def run(python: Path, script: Path) -> subprocess.CompletedProcess[str]:
        if python not in servers:
            servers[python] = subprocess.Popen(
                [python, "-W", "ignore", __file__, *imported], env=env, cwd=ROOT, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        server = servers[python]
        assert server.stdin is not None
        print(script, file=server.stdin, flush=True)
        ready, _, _ = select.select([server.stdout], [], [], LIMIT_S)
        told = server.stdout.readline() if ready else ""
        if not told:
            _end(servers.pop(python))
            raise subprocess.TimeoutExpired([python, script], LIMIT_S)
        return subprocess.CompletedProcess([python, script], *json.loads(told))

    try:
        yield run
    finally:
        for server in servers.values():
            _end(server)


def _end(server: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # with the script that hangs
    server.communicate()


def _serve(imported: list[str]) -> None:
    for module in imported:
        importlib.import_module(module)
    gc.freeze()
    for script in map(str.strip, sys.stdin):
        said, into = os.pipe()  # a script may limit the size of files
        child = os.fork()
        if child == 0:
            for number, place in enumerate((os.open(os.devnull, os.O_RDONLY), into, into)):
                os.dup2(place, number)
            sys.argv, sys.path[0] = [script], str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")
            return  # and this interpreter ends as the script's own would
        os.close(into)
        with open(said, encoding="utf-8", errors="replace") as told:  # noqa: PTH123
            words = told.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), words, ""]), flush=True)  # noqa: T201


if __name__ == "__main__":
    _serve(sys.argv[1:])
