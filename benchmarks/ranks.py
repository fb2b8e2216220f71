"""What it costs to run tests on several ranks, and how long recovery takes. Prints a table; `--json` prints it as JSON.

    python benchmarks/ranks.py --ranks 8
    python benchmarks/ranks.py --ranks 8 --only overhead --only recovery --times 3   # the figures with an aim

Each figure comes from a torchrun of its own, on test files written for it. The comparison with PyTorch's own
MultiProcessTestCase needs `pip install expecttest`, which torch's test utilities import.
"""

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
TORCHRUN = re.compile(r"RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|GROUP_|ROLE_|PYTEST_|OMP_")
WITH = 'pytest_plugins = ["contracts.ranks.plugin"]\n'
CLOCK = """
import json, os, pathlib, time
here = {}
def pytest_runtestloop(): here["began"] = time.time()
def pytest_sessionfinish():
    if os.environ.get("RANK") == "0" and "began" in here:
        pathlib.Path("loop.json").write_text(json.dumps(time.time() - here["began"]))
"""
HEAD = """
import os, signal, time, pytest, torch, torch.distributed as dist
pytestmark = pytest.mark.dist
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def stamp(name):
    with open(name, "a") as file:
        file.write(f"{RANK} {time.time()}\\n")
def summed(x):
    t = torch.tensor([x])
    dist.all_reduce(t)
    return t.item()
"""
EMPTY = '@pytest.mark.parametrize("n", range({tests}))\ndef test_empty(n): pass\n'
BREAKS = """
def test_before(): assert summed(1) == SIZE
def test_breaks():
    if RANK == {rank}:
        stamp("broke")
        {deed}
    summed(1)
def test_next():
    stamp("went on")
    assert summed(RANK) == SIZE * (SIZE - 1) // 2
"""
TEN = """
@pytest.mark.parametrize("n", range(10))
def test_sum(n): assert summed(RANK + n) == SIZE * (SIZE - 1) // 2 + SIZE * n
"""
CROWD = """
import pathlib, sys, time, torch, torch.distributed as dist
from contracts.ranks import cpu_sharing
taken = "turns" in sys.argv and cpu_sharing.take_turns(10**6)
dist.init_process_group("gloo")
hundred = torch.ones(100)
began = time.monotonic()
for _ in range(200):
    dist.all_reduce(hundred)
    hundred /= dist.get_world_size()
if dist.get_rank() == 0:
    pathlib.Path("took").write_text(f"{taken} {1000 * (time.monotonic() - began) / 200}")
dist.destroy_process_group()
"""
THEIRS = """
import os, torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestSum(MultiProcessTestCase):
    world_size = {ranks}
    def setUp(self):
        super().setUp()
        self._spawn_processes()
    def the_sum(self, n):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        t = torch.tensor([self.rank + n])
        dist.all_reduce(t)
        assert t.item() == self.world_size * (self.world_size - 1) // 2 + self.world_size * n
        dist.destroy_process_group()

def test_of(n):
    return lambda self: self.the_sum(n)

for n in range(10):
    setattr(TestSum, f"test_sum_{{n}}", test_of(n))
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table. `aim` is what the figure should be on a quiet machine; `value` is None where it could not
    be measured."""

    what: str
    value: float | None
    unit: str
    aim: str
    note: str = ""


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not TORCHRUN.match(name)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def run(folder: Path, test: str, ranks: int, *options: str, conftest: str = WITH, restarts: int = 0) -> float:
    """Run a test file under torchrun in `folder`; returns the seconds that the command took."""
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(conftest + CLOCK)
    (folder / "test_it.py").write_text(HEAD + test)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  dist\n")
    argv = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
        *(f"--max-restarts={restarts}", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options),
    ]
    return timed(folder, argv)


def timed(folder: Path, argv: list[str]) -> float:
    began = time.monotonic()
    with (folder / "console.txt").open("w") as console:
        subprocess.run(argv, cwd=folder, env=environment(), stdout=console, stderr=subprocess.STDOUT, timeout=600,
                       check=False)  # fmt: skip
    return time.monotonic() - began


def stamps(path: Path) -> list[float]:
    return [float(line.split()[1]) for line in path.read_text().splitlines()]


def passed(folder: Path) -> int:
    found = re.search(r"(\d+) passed", (folder / "console.txt").read_text())
    return int(found[1]) if found else 0


def overhead(base: Path, ranks: int, tests: int = 400, times: int = 1) -> list[Figure]:
    values, notes = [], []
    for number in range(times):
        loops = []
        for name, conftest, options in (("plain", "", ()), ("with", WITH, ("-p", "no:randomly"))):
            folder = base / f"{name}{number}"
            run(folder, EMPTY.format(tests=tests), ranks, *options, conftest=conftest)
            loops.append(float(json.loads((folder / "loop.json").read_text())))
        values.append(1000 * (loops[1] - loops[0]) / tests)
        notes.append(f"{loops[0]:.2f} s plain, {loops[1]:.2f} s agreed")
    note = f"{tests} empty tests: {'; '.join(notes)}"
    return [Figure(what="overhead a test", value=median(values), unit="ms", aim="<= 12", note=note)]


def recovery(base: Path, ranks: int, times: int = 1) -> list[Figure]:
    killed = "os.kill(os.getpid(), signal.SIGKILL)"
    cases = {
        "one failing rank to the next test": (1, 'raise ValueError("broke")', 0, "<= 2.5"),
        "killed rank to the end": (1, killed, 0, "<= 10"),
        "killed rank to the next test": (1, killed, 1, "< 15"),
        "killed rank 0 to the next test": (0, killed, 1, "< 15"),
    }
    figures = []
    for number, (what, (rank, deed, restarts, aim)) in enumerate(cases.items()):
        values, notes = [], []
        for again in range(times):
            folder, spent = base / f"recovery{number}.{again}", cpu_of_children()
            run(folder, BREAKS.format(rank=rank, deed=deed), ranks, restarts=restarts)
            ended, spent = time.time(), cpu_of_children() - spent
            broke = stamps(folder / "broke")
            values.append((ended if what.endswith("the end") else max(stamps(folder / "went on"))) - min(broke))
            notes.append(f"{passed(folder)} of 2 others passed, {len(broke)} time broken, {spent:.0f} s of CPU in all")
        figures.append(Figure(what=what, value=median(values), unit="s", aim=aim, note="; ".join(notes)))
    return figures


def cpu_of_children() -> float:
    """The CPU time, in seconds, of what this process has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def side_by_side(base: Path, ranks: int) -> list[Figure]:
    ours = run(base / "ours", TEN, ranks)
    loop = float(json.loads((base / "ours" / "loop.json").read_text()))
    if importlib.util.find_spec("expecttest") is None:
        note = "not measured: pip install expecttest"
        return [Figure(what="MultiProcessTestCase, ten tests", value=None, unit="s", aim="", note=note)]
    folder = base / "theirs"
    folder.mkdir()
    (folder / "test_theirs.py").write_text(THEIRS.format(ranks=ranks))
    theirs = timed(folder, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"])
    others = f"{passed(folder)} of 10 passed"
    tests = f"the tests alone {loop:.2f} s; {passed(base / 'ours')} of 10 passed"
    return [
        Figure(what="ten tests, this, whole command", value=ours, unit="s", aim="", note=tests),
        Figure(what="ten tests, MultiProcessTestCase", value=theirs, unit="s", aim="", note=others),
        Figure(what="times faster, whole command", value=theirs / ours, unit="x", aim=">= 10"),
        Figure(what="times faster, without torchrun's start", value=theirs / loop, unit="x", aim=">= 10"),
    ]


def taking_turns(base: Path, ranks: int) -> list[Figure]:
    base.mkdir()
    (base / "crowd.py").write_text(CROWD)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "crowd.py"]
    seen: dict[str, list[float]] = {"False": [], "True": []}
    for _ in range(3):
        for words in ([], ["turns"]):
            timed(base, [*launcher, *words])
            taken, took = (base / "took").read_text().split()
            seen[taken].append(float(took))
    usual, turns = (sorted(each)[len(each) // 2] if each else None for each in seen.values())
    note = f"medians of three: {usual:.2f} ms, {turns:.2f} ms" if usual and turns else "the policy was not granted"
    value = usual / turns if usual and turns else None
    return [Figure(what="times faster, an all-reduce that takes turns", value=value, unit="x", aim="", note=note)]


PARTS: dict[str, Callable[[Path, int], list[Figure]]] = {
    "overhead": overhead, "recovery": recovery, "side-by-side": side_by_side, "crowd": taking_turns,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--tests", type=int, default=400, help="empty tests, for the overhead of one")
    parser.add_argument("--times", type=int, default=1, help="the median of so many, of overhead and recovery")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        names = chosen.only or list(PARTS)
        parts: dict[str, Callable[[Path, int], list[Figure]]] = {
            **PARTS,
            "overhead": partial(overhead, tests=chosen.tests, times=chosen.times),
            "recovery": partial(recovery, times=chosen.times),
        }
        figures = [figure for name in names for figure in parts[name](Path(folder) / name, chosen.ranks)]
    machine = {"ranks": chosen.ranks, "cores": os.cpu_count(), "load at the start": round(load, 1)}
    if chosen.json:
        sys.stdout.write(json.dumps({"machine": machine, "figures": [asdict(figure) for figure in figures]}, indent=2))
        return
    lines = [", ".join(f"{name} {value}" for name, value in machine.items())]
    for each in figures:
        value = "-" if each.value is None else f"{each.value:.2f}"
        lines.append(f"{each.what:<50} {value:>8} {each.unit:<6} {each.aim:<6} {each.note}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
