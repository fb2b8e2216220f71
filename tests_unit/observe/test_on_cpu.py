"""A script that only knows CUDA, on this CPU: it computes what the same script computes that was written for a CPU."""

import sys
from pathlib import Path

import pytest

from tests_unit._parties.running import environment, invoked, ran, write

torch = pytest.importorskip("torch")


from contracts.observe.trace import read  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

CPU = """\
import os
import torch
import torch.distributed as dist
from torch import nn

rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1))
for step in range(3):
    mine = rows[step, rank::world]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(mine).square().mean()
    loss.backward()
    mean = loss.detach().float()
    if world > 1:
        dist.all_reduce(mean)
        mean /= world
    if rank == 0:
        print(f"step {step}: {mean:.4f}", flush=True)
    optimizer.step()
    optimizer.zero_grad()
"""
CUDA = """\
import io
import os
import torch
import torch.distributed as dist
from torch import nn

assert torch.cuda.is_available() and torch.accelerator.is_available()
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
local = int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device("cuda", local)
torch.cuda.set_device(device)
if world > 1:
    dist.init_process_group("nccl", device_id=device)
    mesh = dist.init_device_mesh(device_type="cuda", mesh_shape=(world,))
torch.manual_seed(0)
with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
    torch.rand(3)
with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).cuda().to(f"cuda:{local}")
model = nn.parallel.DistributedDataParallel(model, device_ids=[local]) if world > 1 else model.to(local)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1)).pin_memory()
assert not torch.cuda.power_draw() + torch.cuda.memory_stats(device)["num_ooms"]
torch.save(rows, kept := io.BytesIO())
kept.seek(0)
rows = torch.load(kept, map_location=device)
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(3):
    begin.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        mine = rows[step, rank::world].to(device, non_blocking=True)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = model(mine).square().mean()
    loss.backward()
    mean = loss.detach().float() * torch.ones((), device="cuda")
    if world > 1:
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"step {step}: {mean:.4f}", flush=True)
    optimizer.step()
    optimizer.zero_grad()
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) == torch.cuda.max_memory_allocated() == 0
"""


def _observed(folder: Path, name: str, ranks: int, *options: str) -> list[str]:
    """The lines that rank 0 prints."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    observe = ["-m", "rankproof", "observe", *options, "--out", f"{name}-{ranks}", f"{name}.py"]
    done = ran(
        [sys.executable, *launcher, *observe], cwd=folder, env=environment(OMP_NUM_THREADS="1"), limit_s=280, code=0
    )
    return [line for line in done.stdout.splitlines() if line.startswith("step ")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_for_cuda_computes_the_same_on_the_cpu_shims(tmp_path: Path, ranks: int) -> None:
    write(tmp_path, {"for_cpu.py": CPU, "for_cuda.py": CUDA})
    said = _observed(tmp_path, "for_cpu", ranks)
    assert len(said) == 3
    assert _observed(tmp_path, "for_cuda", ranks, "--on-cpu", "cuda") == said
    done = invoked("diff", *(str(tmp_path / f"{name}-{ranks}") for name in ("for_cpu", "for_cuda")), code=0)
    assert "agrees  step 3: updated weights (4)" in done.output
    traced = tmp_path / f"for_cuda-{ranks}"
    invoked("judge", traced, "--report", tmp_path / "judged", code=0)
    assert read(traced).ranks[0].begin["shims"].startswith('shimmed: "cuda" is the CPU')


@pytest.mark.skipif(torch.cuda.is_available(), reason="knows a process without CUDA")
def test_torch_is_as_it_was_after_the_shims() -> None:
    from contracts.stacks.cuda_on_cpu import cuda_is_the_cpu

    begins = torch.nn.parallel.DistributedDataParallel.__init__
    with cuda_is_the_cpu():
        assert torch.zeros(2, device="cuda:3").to("cuda").device.type == "cpu"
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    assert torch.nn.parallel.DistributedDataParallel.__init__ is begins
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
