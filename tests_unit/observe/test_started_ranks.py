"""Ranks that a script starts itself are observed, or named as missing."""

import os
import sys
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked, ran

torch = pytest.importorskip("torch")


from contracts.observe.trace import read  # noqa: E402
from contracts.spec.launchers import without  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, socket, subprocess, sys
import torch
import torch.distributed as dist
from torch import nn

def free():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])

def train(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randint(64, (4, 9))  # the same on both ranks
        nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

if __name__ == "__main__":
    how, port = sys.argv[1], os.environ.get("PORT") or free()
    if how == "spawn":
        torch.multiprocessing.spawn(train, (port,), nprocs=2)
    elif how == "fork":
        other = torch.multiprocessing.get_context("fork").Process(target=train, args=(1, port))
        other.start()
        train(0, port)
        other.join()
    else:
        words = [sys.executable, __file__, how] if how == "again" else [sys.executable, "-W", "ignore", __file__, how]
        other = None if "PORT" in os.environ else subprocess.Popen(words, env={**os.environ, "PORT": port})
        train(int(other is None), port)
        if other:
            sys.exit(other.wait())
"""


def _observed(tmp_path: Path, how: str, script: str = SCRIPT) -> Path:
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-P", "-m", "contracts.harness.cli", "observe", "--out", "trace", "train.py", how]
    environment = {**without(os.environ), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran(command, cwd=tmp_path, env=environment, limit_s=300, code=0)
    return tmp_path / "trace"


def _judged(trace: Path, tmp_path: Path) -> str:
    return " ".join(invoked("judge", trace, "--report", tmp_path / "report", code=1).output.split())


@pytest.mark.parametrize("how", ["again", "spawn", "fork"])
def test_ranks_that_a_script_starts_are_observed(tmp_path: Path, how: str) -> None:
    trace = _observed(tmp_path, how)
    assert [each.rank for each in read(trace).ranks] == [0, 1]
    words = "Violated: 1 OBS-06[one-run] got step 1: ranks 0 and 1 consume the same 4 rows"
    assert words in _judged(trace, tmp_path)


def test_ranks_that_are_not_observed_are_named(tmp_path: Path) -> None:
    said = _judged(_observed(tmp_path, "otherwise"), tmp_path)
    assert "OBS-17[one-run] got rank 1 of the process group of rank 0 left no trace" in said


def test_a_script_gets_the_local_rank_that_a_launcher_puts_in_front(tmp_path: Path) -> None:
    says = "import sys\nassert sys.argv[1:] == ['--local-rank=0', 'on'], sys.argv\n"
    (tmp_path / "train.py").write_text(says)
    launch = ["-W", "ignore", "-m", "torch.distributed.launch", "--nproc-per-node", "1", "-m", "rankproof"]
    environment = {**without(os.environ), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, "observe", "--out", "trace", "train.py", "on"]
    ran(command, cwd=tmp_path, env=environment, limit_s=300, code=0)
    (rank,) = read(tmp_path / "trace").ranks
    assert rank.begin["command"] == ["train.py", "--local-rank=0", "on"]


def test_objects_of_a_destroyed_group_are_never_freed(tmp_path: Path) -> None:
    """To free it could hang: gloo joins its threads under the GIL, for which they may wait."""
    noted = "import weakref; end = weakref.finalize(net, open, 'freed', 'w'); end.atexit = False"
    _observed(tmp_path, "fork", SCRIPT.replace("    optimizer = ", f"    {noted}\n    optimizer = "))
    assert not (tmp_path / "freed").exists()
