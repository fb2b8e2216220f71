"""Runs the gate as a user does, from the outside."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from contracts.harness.cli import main

ROOT = Path(__file__).parents[2]
RANKPROOF = Path(sys.executable).with_name("rankproof")
BAD = "tests_unit._parties.bad"

Done = subprocess.CompletedProcess[str]


def environment(**changes: str) -> dict[str, str]:
    """What a run inherits: the suite importable from anywhere, and nothing of the pytest that runs this."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "RANKPROOF_PROGRESS": "0", **changes}


def side_by_side(runs: Mapping[str, Sequence[object]], folder: Path, **files: Mapping[str, str]) -> dict[str, Done]:
    """Several runs, by name, each in a directory and a process of its own.

    A run is the words of a command: `pytest …`, or those of `rankproof` without its name. `files` are written into
    the directory of the run they are named after, `_` for every run, before it starts. The processes are forked from
    two that have already imported both commands, which saves most of a run's time.
    """
    jobs: list[list[dict[str, object]]] = [[], []]
    for number, (name, words) in enumerate(runs.items()):
        (folder / name).mkdir()
        for path, text in {**files.get("_", {}), **files.get(name.replace("-", "_"), {})}.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text, encoding="utf-8")
        jobs[number % 2].append({"cwd": str(folder / name), "words": [str(word) for word in words]})

    def work(job: list[dict[str, object]]) -> None:
        subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(job), text=True, env=environment(), check=True,
            cwd=ROOT, timeout=120,
        )  # fmt: skip

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(work, jobs))
    return {name: _done(folder / name, words) for name, words in runs.items()}


def _done(directory: Path, words: Sequence[object]) -> Done:
    out, err, code = ((directory / name).read_text(encoding="utf-8") for name in ("stdout", "stderr", "code"))
    return Done(["rankproof", *map(str, words)], int(code), out, err)


# pytest would rewrite the package of an installed plugin, which is imported here long before.
_LOADED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


def _run(cwd: str, words: list[str]) -> None:
    """The command in this process, which ends with it."""
    os.chdir(cwd)
    sys.path[0] = ""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    if words[0] == "pytest":
        sys.exit(int(pytest.main([*_LOADED, *words[1:]])))
    main(words, prog_name="rankproof")


def _serve() -> None:
    for module in ("contracts.checks", "contracts.mutants", "rich.table", "jinja2", "junitparser"):
        importlib.import_module(module)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123
        pytest.main(
            [*_LOADED, "--version", "--version", "-p", "contracts.harness.plugin"]
        )  # imports pytest's own plugins
    gc.freeze()
    for job in json.load(sys.stdin):
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
        Path(job["cwd"], "code").write_text(str(os.waitstatus_to_exitcode(status)), encoding="utf-8")


if __name__ == "__main__":
    _serve()
