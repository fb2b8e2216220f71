"""Runs the gate as a user does, from the outside."""

import atexit
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from contracts.harness.cli import main
from contracts.harness.families import read_checks

ROOT = Path(__file__).parents[2]
RANKPROOF = Path(sys.executable).with_name("rankproof")
BAD = "tests_unit._parties.bad"

Done = subprocess.CompletedProcess[str]


def needs(*modules: str) -> pytest.MarkDecorator:
    """The mark of a test that starts a tool of the extra dev."""
    missing = [each for each in modules if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}, of the extra dev")


def write(folder: Path, files: Mapping[str, str], mode: int = 0o644) -> None:
    """Files by their names in a folder, with the folders that they need."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(mode)


def metadata(site: Path, name: str, version: str, **files: str) -> Path:
    """Make a distribution look installed; returns its folder of metadata, where other files may lie."""
    folder = site / f"{name}-{version}.dist-info"
    write(folder, {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", **files})
    return folder


def printed(done: Done) -> str:
    """All that a run printed, in one line."""
    return " ".join((done.stdout + done.stderr).split())


def environment(**changes: str) -> dict[str, str]:
    """What a run inherits: the suite importable from anywhere, and nothing of the pytest that runs this."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "RANKPROOF_PROGRESS": "0", **changes}


LIMIT_S = 120.0


def rankproof(
    *words: object, cwd: Path, code: int | None = None, limit_s: float = LIMIT_S, numbers: bool = False, **changes: str
) -> Done:
    """One run of the command, in a fork of a process that has imported it, and torch where it is about numbers."""
    with tempfile.TemporaryDirectory() as out:
        _forked("torch" if numbers else "0", cwd, Path(out), words, environment(**changes), limit_s)
        return _ended(_done(Path(out), words), code)


def ran(command: Sequence[object], *, code: int | None = None, limit_s: float = 300.0, **options: Any) -> Done:
    """A command that has ended, with this exit code if one is given."""
    words = [str(word) for word in command]
    return _ended(subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s, **options), code)


def _ended(done: Done, code: int | None) -> Done:
    assert code in (None, done.returncode), f"exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
    return done


def invoked(*words: object, code: int | None = None, **options: Any) -> Result:
    """`rankproof` in this process, which ended with this exit code if one is given."""
    done = CliRunner().invoke(main, [str(word) for word in words], **options)
    assert code in (None, done.exit_code), f"exit code {done.exit_code}, expected {code}\n{done.output}{done.exception}"
    return done


def side_by_side(runs: Mapping[str, Sequence[object]], folder: Path, **files: Mapping[str, str]) -> dict[str, Done]:
    """Several runs, by name, each in a directory and a process of its own.

    A run is the words of a command: `pytest …`, or those of `rankproof` without its name. `files` are written into
    the directory of the run they are named after, `_` for every run, before it starts. The processes are forked from
    two that have already imported both commands, which saves most of a run's time.
    """
    jobs: list[list[tuple[Path, Sequence[object]]]] = [[], []]
    for number, (name, words) in enumerate(runs.items()):
        (folder / name).mkdir()
        write(folder / name, {**files.get("_", {}), **files.get(name.replace("-", "_"), {})})
        jobs[number % 2].append((folder / name, words))

    def work(number: int) -> None:
        for directory, words in jobs[number]:
            _forked(str(number), directory, directory, words, environment())

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(work, range(2)))
    return {name: _done(folder / name, words) for name, words in runs.items()}


def _done(out: Path, words: Sequence[object]) -> Done:
    said, err, code = ((out / name).read_text(encoding="utf-8") for name in ("stdout", "stderr", "code"))
    return Done(["rankproof", *map(str, words)], int(code), said, err)


def _forked(
    name: str, cwd: Path, out: Path, words: Sequence[object], variables: Mapping[str, str], limit_s: float = LIMIT_S
) -> None:
    """A run in a fork of a server; what it prints, and its exit code, are in files of `out`."""
    server = _server(name)
    assert server.stdin is not None
    job = {"cwd": str(cwd), "out": str(out), "words": [str(word) for word in words], "variables": dict(variables)}
    print(json.dumps(job), file=server.stdin, flush=True)
    ready, _, _ = select.select([server.stdout], [], [], limit_s)
    if not ready or not server.stdout.readline():
        _end(server)
        _server.cache_clear()
        raise subprocess.TimeoutExpired([*map(str, words)], limit_s)


@functools.cache
def _server(name: str) -> subprocess.Popen[str]:
    """One of several, by name; "torch" has imported that too. It ends when this process does."""
    variables = environment(**({"OMP_NUM_THREADS": "1"} if name == "torch" else {}))  # a fork loses torch's threads
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, name], env=variables, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)  # with the run that hangs
    server.communicate()


# pytest would rewrite the package of an installed plugin, which is imported here long before.
_LOADED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


def _run(cwd: str, out: str, words: list[str], variables: dict[str, str]) -> None:
    """The command in this process, which ends with it."""
    os.environ.clear()
    os.environ.update(variables)
    for number, place in ((0, os.devnull), (1, f"{out}/stdout"), (2, f"{out}/stderr")):
        os.dup2(os.open(place, os.O_RDWR | os.O_CREAT), number)
    os.chdir(cwd)
    sys.path[0] = str(RANKPROOF.parent)  # as of an installed command, and not the current folder
    if words[0] == "pytest":
        sys.exit(int(pytest.main([*_LOADED, *words[1:]])))
    sys.argv = [str(RANKPROOF), *words]
    main(words, prog_name="rankproof")


def _serve() -> None:
    for module in ("rich.table", "jinja2"):
        importlib.import_module(module)
    read_checks()
    if sys.argv[1] == "torch":
        importlib.import_module("torch")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123
        pytest.main(
            [*_LOADED, "--version", "--version", "-p", "contracts.harness.plugin"]
        )  # imports pytest's own plugins
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _run(**job)
            except SystemExit as end:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code if isinstance(end.code, int) else 70)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            os._exit(70)
        _, status = os.waitpid(child, 0)
        Path(job["out"], "code").write_text(str(os.waitstatus_to_exitcode(status)), encoding="utf-8")
        print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    _serve()
