"""Which ranks hold the same is known by evidence: optimizers that reduce, and tensor parallelism by hand."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")


from contracts.law.observe.experts_bugs import DISPATCH, LIST  # noqa: E402
from contracts.law.observe.replicas_bugs import SplitsOnEachRank  # noqa: E402
from contracts.law.observe.steps_bugs import CLIP, ClipsByTheNormOfItsShards, ClipsInEveryMicrobatch  # noqa: E402
from contracts.stacks.reference.answers.observing import observe  # noqa: E402
from contracts.stacks.reference.stack import Reference  # noqa: E402
from tests_unit._parties.law import LAW  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

REDUCES = """
import sys
import torch
import torch.distributed as dist
from torch import nn

class Reducing(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"][int("some" in sys.argv):]:
                whole = p.grad.clone()
                dist.all_reduce(whole)
                p.sub_(whole, alpha=group["lr"] / dist.get_world_size())

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
opt = Reducing(net.parameters(), lr=0.1)
for step in range(2):
    torch.manual_seed(10 * step + dist.get_rank())
    x = torch.randint(64, (4, 9))
    nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    opt.step()
    opt.zero_grad()
"""
HALVES = """
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x
    @staticmethod
    def backward(ctx, g):
        return g

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        if "forgets" not in sys.argv:
            dist.all_reduce(g)
        return g

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.up, self.down = nn.Linear(16, 32 // world, bias=False), nn.Linear(32 // world, 16, bias=False)
        torch.manual_seed(1)
        up, down = torch.randn(32, 16) / 4, torch.randn(16, 32) / 6
        mine = 0 if "copies" in sys.argv else rank
        self.up.weight.data, self.down.weight.data = up.chunk(world)[mine].clone(), down.chunk(world, 1)[mine].clone()
    def forward(self, x):
        h = self.embed(x)
        return self.head(h + Sum.apply(self.down(torch.relu(self.up(Copy.apply(h))))))

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    torch.manual_seed(step)
    x = torch.randint(64, (4, 9))
    nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    opt.step()
    opt.zero_grad()
"""
DECLARED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import parallel

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 64))
mesh = dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
parallel.parallelize_module(net, mesh, {"1": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()})
torch.manual_seed(dist.get_rank())
nn.init.normal_(net[0].weight)  # which no layout cuts
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    torch.manual_seed(step)
    x = torch.randint(64, (4, 9))
    nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    opt.step()
    opt.zero_grad()
"""
SEQUENCES = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, parallel

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
joined, cut = parallel.ColwiseParallel(input_layouts=Shard(0)), parallel.RowwiseParallel(output_layouts=Shard(0))
norm = parallel.SequenceParallel(sequence_dim=0)  # of whose gradients each rank has a part of a sum
plan = {"0": norm, "1": joined, "3": cut}
parallel.parallelize_module(net, dist.device_mesh.init_device_mesh("cpu", (2,)), plan)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    torch.manual_seed(2 * step + dist.get_rank())
    net(torch.randn(4, 16)).square().mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    opt.step()
    opt.zero_grad()
"""
PARTS = """
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
cp = 2 if world > 1 else 1
mine, of = rank % cp, rank // cp
groups = [dist.new_group(range(first, first + cp)) for first in range(0, world, cp)]

def places(length):
    ends = torch.arange(length).chunk(2 * cp)
    if "ends" in sys.argv:
        return torch.cat([ends[mine], ends[2 * cp - 1 - mine]])
    return torch.cat(ends[2 * mine : 2 * mine + 2])

class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        held = [torch.empty_like(x) for _ in range(cp)]
        if "ring" in sys.argv:
            held[mine] = x.contiguous()
            sends = dist.P2POp(dist.isend, held[mine], rank ^ 1), dist.P2POp(dist.irecv, held[1 - mine], rank ^ 1)
            [each.wait() for each in dist.batch_isend_irecv(list(sends))]
        else:
            dist.all_gather(held, x.contiguous(), group=groups[of])
        return torch.cat(held, dim=1)
    @staticmethod
    def backward(ctx, g):
        dist.all_reduce(g := g.contiguous(), group=groups[of])
        return g.chunk(cp, dim=1)[mine]

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys, self.out = nn.Linear(16, 32, bias=False), nn.Linear(16, 16)
    def forward(self, x, at):
        held = torch.cat([self.keys(x), at.float().expand(len(x), -1)[..., None]], dim=-1)
        held = Joined.apply(held)
        key, value, other = held[..., :16], held[..., 16:32], held[..., 32]
        seen = other[:, None] <= (torch.arange(len(at)) if "local" in sys.argv else at)[:, None]
        return x + self.out(((x @ key.mT / 4).masked_fill(~seen, -torch.inf)).softmax(-1) @ value)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.head = nn.Embedding(64, 16), Attends(), nn.Linear(16, 64)
    def forward(self, x, at):
        return self.head(self.attend(self.embed(x), at)).flatten(0, 1)

torch.manual_seed(0)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for step in range(2):
    torch.manual_seed(step)
    rows = torch.randint(64, (4, 17))
    if "other" in sys.argv:
        rows[0, 12] ^= rank % cp
    rows, at = rows.chunk(world // cp)[of], places(16)
    x, y = rows[:, :-1][:, at], rows[:, 1:][:, at]
    nn.functional.cross_entropy(net(x.contiguous(), at), y.flatten()).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
    opt.zero_grad()
"""
BY_HAND = """
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
opt = torch.optim.AdamW(net.parameters())
for step in range(2):
    torch.manual_seed(10 * step + dist.get_rank())
    for x in torch.randint(64, (2, 4, 9)):
        nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size() * (1 if "whole" in sys.argv else 2)
    opt.step()
    opt.zero_grad()
"""
NUMBERED = """
import sys
import numpy
import torch
import torch.distributed as dist
from torch import nn

class Own(nn.Parameter):
    pass

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
net[1].weight = Own(net[1].weight.detach())
model = nn.parallel.DistributedDataParallel(net, process_group=dist.new_group(numpy.arange(2)))
opt = torch.optim.AdamW(model.parameters())
for step in range(2):
    torch.manual_seed(10 * step + dist.get_rank())
    for micro, x in enumerate(torch.randint(64, (2, 4, 9))):
        with model.no_sync():
            scores = model(x[:, :-1]).flatten(0, 1)
        if micro and "never" not in sys.argv:
            model.reducer.prepare_for_backward([])
        (nn.functional.cross_entropy(scores, x[:, 1:].flatten()) / 2).backward()
    opt.step()
    opt.zero_grad()
"""
RUNS: Mapping[str, tuple[str, int, tuple[str, ...]]] = {
    "reduces": (REDUCES, 2, ()), "some": (REDUCES, 2, ("some",)), "one": (HALVES, 1, ()), "halves": (HALVES, 2, ()),
    "copies": (HALVES, 2, ("copies",)), "forgets": (HALVES, 2, ("forgets",)),
    "declared": (DECLARED, 2, ()), "sequences": (SEQUENCES, 2, ()),
    "rows": (PARTS, 1, ()), "parts": (PARTS, 2, ()), "ends": (PARTS, 4, ("ends",)), "ring": (PARTS, 2, ("ring",)),
    "local": (PARTS, 2, ("local",)),
    "other": (PARTS, 2, ("other",)), "by hand": (BY_HAND, 2, ()), "whole": (BY_HAND, 2, ("whole",)),
    "numbered": (NUMBERED, 2, ()), "never": (NUMBERED, 2, ("never",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, (script, ranks, words) in RUNS.items():
        (folder / "train.py").write_text(script)
        assert observe(folder, ("train.py", *words), folder / name, ranks) == [0] * ranks, name
    return folder


def _judged(trace: Path, tmp_path: Path, code: int) -> str:
    return " ".join(invoked("judge", trace, "--report", tmp_path / "report", code=code).output.split())


@pytest.mark.parametrize("run", ["reduces", "halves", "sequences", "parts", "ends", "by hand", "numbered"])
def test_a_healthy_run_violates_nothing_and_is_equal_to_itself(traces: Path, tmp_path: Path, run: str) -> None:
    _judged(traces / run, tmp_path, code=0)
    invoked("diff", traces / run, traces / run, code=0)


@pytest.mark.parametrize(("run", "tensor"), [
    ("some", "the gradient of 0.weight"),  # which the optimizer leaves out
    ("forgets", "the gradient of embed.weight"),  # the backward pass of a layer cut by columns adds nothing up
    ("declared", "the weight 0.weight"),  # a replica beside declared shards
    ("never", "the gradient of 0.weight"),  # nanotron enters `no_sync` always, and has DDP reduce in the last backward
])  # fmt: skip
def test_a_tensor_that_replicas_hold_with_different_bits_is_named(
    traces: Path, tmp_path: Path, run: str, tensor: str
) -> None:
    words = f"OBS-02[one-run] got step 1: {tensor} has other bits on rank 1 than on rank 0"
    assert words in _judged(traces / run, tmp_path, code=1)


ROWS = ("step 2: inputs (4 rows, cut along the sequence in one of the runs)", "12 outputs, 2 losses, 12 gradients")
DIFFS: Mapping[str, tuple[int, tuple[str, ...]]] = {  # two runs → the exit code of `diff`, and what it says
    "one halves": (0, ()),
    "one forgets": (1, ("first in step 1, gradient: embed.weight: ",)),
    "one copies": (1, ("initial weights: up.weight: 2 ranks hold 1 different parts of shape (16, 16) of (32, 16)",)),
    **dict.fromkeys(("rows parts", "rows ends", "rows ring", "parts rows"), (0, ROWS)),
    # each part masked as the first
    "rows local": (1, ("first in step 1, output of module: attend.out: has the norm ",)),
    # one id of the second part of one row
    "rows other": (3, ("step 1: the inputs differ: 4 rows and 8 rows, ",)),
}


@pytest.mark.parametrize("runs", DIFFS)
def test_weights_and_rows_that_ranks_hold_in_parts_are_compared_with_the_whole(traces: Path, runs: str) -> None:
    code, words = DIFFS[runs]
    said = invoked("diff", *(traces / each for each in runs.split()), code=code).output
    assert [each for each in words if each not in said] == [], said


def test_gradients_that_are_reduced_by_hand_are_divided_by_the_microbatches(traces: Path, tmp_path: Path) -> None:
    said = _judged(traces / "whole", tmp_path, code=1)
    assert "OBS-07[one-run] got step 1: the labels of each of 2 microbatches weigh 1 together on rank 0" in said


def _is_healthy(id: str, edits: Mapping[str, str]) -> None:
    """Whether the contract holds of the script with these edits."""
    LAW.contracts[id].check(type("Edited", (Reference,), {"edits": edits})())


@pytest.mark.parametrize("dispatch", [DISPATCH, LIST], ids=["grouped", "list"])
def test_a_dispatch_that_loses_no_row_is_healthy(dispatch: Mapping[str, str]) -> None:
    _is_healthy("OBS-18", dispatch)


def test_clipping_by_the_norm_over_all_shards_is_healthy() -> None:
    of_shards, of_all = ", norm)", ", norm.full_tensor())"
    right = {each: new.replace("each.grad.to_local()", "each.grad").replace(of_shards, of_all)
             for each, new in ClipsByTheNormOfItsShards.edits.items()}  # fmt: skip
    _is_healthy("OBS-04", right)


@pytest.mark.parametrize("clip", [
    "nn.utils.clip_grad_norm_(model.parameters(), torch.inf)",  # only logs
    "micro and nn.utils.clip_grad_norm_([net.up.bias], 1e-4)",  # one after the other
    "step or nn.utils.clip_grad_norm_(model.parameters(), 1e-2)",  # as in a step that a scaler skips
])  # fmt: skip
def test_clipping_after_each_microbatch_is_healthy_unless_it_scales_in_every_step(clip: str) -> None:
    others = CLIP.replace("model.parameters()", "[each for each in net.parameters() if each is not net.up.bias]")
    right = {old: new.replace(CLIP.strip().replace("1.0", "0.1"), clip)
             for old, new in ClipsInEveryMicrobatch.edits.items()}  # fmt: skip
    assert right != ClipsInEveryMicrobatch.edits
    _is_healthy("OBS-04", right | {CLIP: others if "bias" in clip else CLIP})


DRAWN = "random_split(texts, [32, 8], torch.Generator().manual_seed(rank))"
SAMPLED = "torch.utils.data.DistributedSampler(part, world, rank)"


@pytest.mark.parametrize("drawn", [
    {"manual_seed(rank)": "manual_seed(0)"},  # one split, divided between the ranks
    {DRAWN: "Subset(texts, range(rank, 40, world)), 0", SAMPLED: "None"},  # one for each rank
], ids=["shared", "own"])  # fmt: skip
def test_a_split_that_ranks_share_or_do_not_divide_is_healthy(drawn: dict[str, str]) -> None:
    right = dict(SplitsOnEachRank.edits)
    for old, new in drawn.items():
        assert any(old in each for each in right.values())
        right = {key: each.replace(old, new) for key, each in right.items()}
    _is_healthy("OBS-06", right)
