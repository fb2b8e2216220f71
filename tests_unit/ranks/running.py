"""Starts torchrun on test files written for the occasion, and reads what rank 0 says of them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
TORCHRUN = re.compile(r"RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|GROUP_|ROLE_|PYTEST_|COV_|OMP_")
CONFTEST = 'pytest_plugins = ["contracts.ranks.plugin"]\n'
PLAIN = """
import os

def pytest_addoption(parser):
    for option in ("--dist-out", "--dist-timeout", "--dist-grace", "--dist-hard"):
        parser.addoption(option)

def pytest_configure(config):
    config.addinivalue_line("markers", "dist: of several ranks")
    if os.environ["RANK"] != "0":
        config.option.xmlpath = None

def pytest_sessionfinish(session):
    if os.environ["RANK"] != "0":
        session.exitstatus = 0  # else torchrun may end rank 0 before it has written
"""
"""The conftest of plain `torchrun -m pytest`: each rank has a session of its own, and rank 0 writes the report."""
HEAD = """
import os, time, pytest, torch, torch.distributed as dist
pytestmark = pytest.mark.dist
RANK = int(os.environ["RANK"])

def summed(x, group=None):
    t = torch.tensor([x])
    dist.all_reduce(t, group=group)
    return t.item()
"""


def needs_torch() -> list[pytest.MarkDecorator]:
    """The marks of a file of such tests."""
    import importlib.util

    there = importlib.util.find_spec("torch") is not None
    return [pytest.mark.torchrun, pytest.mark.skipif(not there, reason="torch is not installed; pip install torch")]


@dataclass(frozen=True, kw_only=True)
class Run:
    """How one torchrun ended. `outcomes` is rank 0's JUnit file: test → outcomes and words, in its order."""

    code: int
    seconds: float
    output: str
    outcomes: dict[str, list[tuple[str, str]]]
    folder: Path

    def outcome(self, name: str) -> str:
        return "+".join(dict.fromkeys(kind for kind, _ in self.outcomes.get(name, [("absent", "")])))

    def words(self, name: str) -> str:
        return "\n".join(words for _, words in self.outcomes.get(name, []))

    def left(self, pattern: str) -> list[Path]:
        """The files that the ranks left behind."""
        return sorted(self.folder.glob(f"out/*/{pattern}"))

    def journal(self) -> list[dict[str, object]]:
        return [json.loads(line) for path in self.left("journal.jsonl") for line in path.read_text().splitlines()]


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\njunit_family = xunit1\n", **files}.items():
        body = HEAD + textwrap.dedent(text) if name.startswith("test_") else textwrap.dedent(text)
        (folder / name).write_text(body, encoding="utf-8")


def command(ranks: int, restarts: int, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
        *(f"--max-restarts={restarts}", "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=junit.xml"),
        *("--dist-out=out", "--dist-timeout=20", "--dist-grace=0.5", "--dist-hard=3", *options),
    ]


def start(folder: Path, argv: list[str], console: str = "console.txt") -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not TORCHRUN.match(name)}
    clean |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": ""}
    with (folder / console).open("w") as log:
        return subprocess.Popen(argv, cwd=folder, env=clean, stdout=log, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)  # fmt: skip


def torchrun(
    folder: Path, files: dict[str, str], *options: str, ranks: int = 3, restarts: int = 0, limit_s: float = 150
) -> Run:
    """Run test files under torchrun. Nothing of it is left running, whatever happens."""
    write(folder, files)
    began = time.monotonic()
    process = start(folder, command(ranks, restarts, *options))
    try:
        code = process.wait(limit_s)
    finally:
        end(process)
    return ended(folder, code, time.monotonic() - began)


def two_nodes(
    folder: Path, files: dict[str, str], *, ranks: int = 1, restarts: int = 0, limit_s: float = 150
) -> tuple[Run, int]:
    """Run test files under two torchruns of `ranks` each, as on two nodes: what they said and the first one's exit
    code, and the other's."""
    write(folder, files)
    with socket.create_server(("localhost", 0)) as free:
        meeting = f"--rdzv-endpoint=localhost:{free.getsockname()[1]}"
    argv = command(ranks, restarts)
    at = argv.index("--standalone")
    argv[at : at + 1] = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=two", meeting]
    began = time.monotonic()
    nodes = [start(folder, argv, console) for console in ("console.txt", "other.txt")]
    try:
        first, other = (node.wait(limit_s) for node in nodes)
    finally:
        for node in nodes:
            end(node)
    with (folder / "console.txt").open("a") as both:
        both.write((folder / "other.txt").read_text(errors="replace"))
    return ended(folder, first, time.monotonic() - began), other


def end(process: subprocess.Popen[str]) -> None:
    """torchrun puts each rank into a session of its own; they go with it only if it is asked to end them."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(35)
        except subprocess.TimeoutExpired:
            process.kill()


def ended(folder: Path, code: int, seconds: float) -> Run:
    console = (folder / "console.txt").read_text(errors="replace")
    return Run(code=code, seconds=seconds, output=console, outcomes=_outcomes(folder / "junit.xml"), folder=folder)


def _outcomes(path: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for case in ElementTree.parse(path).iter("testcase") if path.exists() else ():
        said = case.findtext("system-out") or ""
        results = [
            (_KINDS[each.tag], f"{each.get('message')}\n{each.text or ''}\n{said}")
            for each in case
            if each.tag in _KINDS
        ]
        found.setdefault(case.attrib["name"], []).extend(results or [("passed", said)])
    return found


_KINDS = {"failure": "failed", "error": "error", "skipped": "skipped"}
