"""FSDP1 that does not shard: its ranks are replicas, and drift apart where nobody reduces their gradients."""

from pathlib import Path

import pytest

from tests_unit._parties.running import invoked, write

torch = pytest.importorskip("torch")


from contracts.stacks.reference.answers.observing import observe  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

SCRIPT = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
if world > 1:
    hybrid = sys.argv[1] == "hybrid"
    mesh = dist.device_mesh.init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicate", "shard"))
    strategy = ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.NO_SHARD
    net = FullyShardedDataParallel(net, device_mesh=mesh if hybrid else None, sharding_strategy=strategy,
                                   device_id=torch.device("cpu"), use_orig_params=sys.argv[2] == "original")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(16, each, generator=generator).chunk(world)[rank] for each in (16, 8))
    optimizer.zero_grad()
    (net(x) - y).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def _observed(folder: Path, ranks: int, *words: str) -> Path:
    write(folder, {"train.py": SCRIPT})
    codes = observe(folder, ("train.py", *words), folder / "out", ranks)
    assert codes == [0] * ranks, (folder / "stderr-0").read_text()
    return folder / "out"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _observed(tmp_path_factory.mktemp("runs") / "one", 1)


@pytest.mark.parametrize("parameters", ["original", "flat"])
@pytest.mark.parametrize(("strategy", "code"), [("unsharded", 0), ("hybrid", 1)])
def test_fsdp1_replicas_that_are_not_sharded_are_compared(
    one: Path, tmp_path: Path, strategy: str, code: int, parameters: str
) -> None:
    """HYBRID_SHARD over groups of one rank becomes NO_SHARD within them, and reduces nothing: torch 2.13."""
    two = _observed(tmp_path / "two", 2, strategy, parameters)
    done = invoked("judge", two, "--profile", "OBS-02", "--report", tmp_path / "report", code=code)
    words = "the gradient of 0.weight has other bits on rank 1 than on rank 0"
    assert (words in " ".join(done.output.split())) == bool(code)
    done = invoked("diff", one, two, code=code)
    assert "agrees  step 1: initial weights (4)" in done.output
    assert ("agrees  step 2: updated weights (4)" in done.output) != bool(code)
