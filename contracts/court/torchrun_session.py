"""Runs a test file on several ranks of this machine, and reads the outcome of each test from the report."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase

from contracts.spec import launchers
from contracts.spec.interpreter import python
from contracts.spec.world import RanksRun, Told

RESTARTS = 3  # how many tests may kill a rank before the run is given up
PLUGIN = ("-p", "contracts.ranks.plugin")
PATIENCE_S = 240.0  # for a whole file; 200 s were seen beside some twenty busy processes on two cores
LAST_CHARACTERS = 6000


def environment() -> dict[str, str]:
    """The environment of this process without its rank and without options or plugins for another pytest, with one
    thread."""
    outside = launchers.without(os.environ)
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        outside.pop(inherited, None)
    return {"OMP_NUM_THREADS": "1", **outside, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def command(ranks: int, arguments: Sequence[str], *, restarts: int = RESTARTS) -> tuple[str, ...]:
    """`torchrun … -m pytest …` for this interpreter, on this machine alone."""
    launcher = python("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python")
    return (*launcher, f"--max-restarts={restarts}", *python("-m", "pytest", *arguments))


def run(
    tests: str, ranks: int, limit_s: float, *, plugin: Sequence[str] = PLUGIN, restarts: int = RESTARTS,
    beside: Mapping[str, str] | None = None,
) -> RanksRun:  # fmt: skip
    """Run a test file to its end, in a folder of its own.

    Args:
        plugin: the words that bring the ranks plugin in.
        restarts: how often torchrun may start the ranks again.
        beside: files that stand beside the test file.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        for name, text in {"test_ranks.py": tests, **(beside or {})}.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        words = ["-q", "-c", os.devnull, f"--rootdir={folder}", "-p", "no:cacheprovider"]
        limits = [f"--dist-timeout={limit_s}", f"--dist-out={folder}/ranks"] if plugin else []
        asked = command(ranks, [f"{folder}/test_ranks.py", *words, *plugin, *limits, f"--junitxml={report}"],
                        restarts=restarts)  # fmt: skip
        code, console = _to_its_end(asked, folder)
        return RanksRun(tests=_read(report), console=console[-LAST_CHARACTERS:], exit_code=code)


def _to_its_end(asked: Sequence[str], folder: str) -> tuple[int, str]:
    """Exit code and output. A command that takes too long gets SIGTERM, so that torchrun ends its workers, then
    SIGKILL."""
    with subprocess.Popen(
        asked, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.STDOUT, errors="replace",
    ) as running:  # fmt: skip
        try:
            said, _ = running.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            running.terminate()
            try:
                said, _ = running.communicate(timeout=40)  # torchrun gives its workers 30 s
            except subprocess.TimeoutExpired:
                running.kill()
                said, _ = running.communicate()
            said += f"\ntime ran out: the ranks were not through within {PATIENCE_S:g} s"
        return running.returncode, said


def _read(report: Path) -> dict[str, Told]:
    if not report.exists():
        return {}
    suites = JUnitXml.fromfile(str(report))
    return {case.name: _told(case) for suite in suites for case in suite}


def _told(case: TestCase) -> Told:
    seconds = float(case.time or 0.0)
    for entry in case.result:
        words = f"{entry.message or ''}\n{entry.text or ''}".strip()
        if isinstance(entry, (Failure, Error)):
            return Told(outcome="failed", words=words, seconds=seconds)
        if isinstance(entry, Skipped):
            return Told(outcome="skipped", words=words, seconds=seconds)
    return Told(outcome="passed", seconds=seconds)
