"""The staged group carries what gloo carries, and each fault of it is seen here.

On CPUs it serves the CPU: tensors go through copies as they would between a device and the host.
"""

import copy
import datetime
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from contracts.instruments import staged_copies, staged_group
from contracts.instruments.ranks import gathered
from contracts.instruments.traffic import Collective, watched

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
UNKNOWN_TO_GLOO = (torch.int16, torch.complex64, torch.float8_e4m3fn)
REDUCTIONS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.AVG,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "product": ReduceOp.PRODUCT,
}
Call = Callable[..., dist.Work | None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call (with `async_op`) and what it writes on this rank."""

    call: Call
    outputs: Sequence[torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Draws the tensors of a rank: small whole numbers, so that every dtype computes exactly and in any order."""

    rank: int
    dtype: torch.dtype

    def __call__(self, *shape: int, salt: int = 0) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(1000 * salt + self.rank)
        return torch.randint(0, 2 if self.dtype == torch.bool else 4, shape, generator=drawn).to(self.dtype)


def _into(call: Call, output: torch.Tensor, *inputs: object, **options: object) -> Case:
    return Case(call=partial(call, output, *inputs, **options), outputs=[output])


def _cases(group: ProcessGroup, dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """Every collective, on tensors of this rank."""
    size, rank = group.size(), group.rank()
    draw, last = Numbers(rank=rank, dtype=dtype), size - 1
    for name, op in REDUCTIONS.items():
        if dtype in FLOATS or name != "avg":
            yield f"all_reduce {name}", _into(dist.all_reduce, draw(3, 4), op=op, group=group)
            mine = draw(3, 4)
            kept = [mine] if rank == 1 else []
            yield f"reduce {name}", Case(call=partial(dist.reduce, mine, group_dst=1, op=op, group=group), outputs=kept)
            given = [draw(2, 3, salt=k) for k in range(size)]
            yield f"reduce_scatter {name}", _into(dist.reduce_scatter, draw(2, 3), given, op=op, group=group)
            whole = draw(2 * size, 3)
            yield (
                f"reduce_scatter_tensor {name}",
                _into(dist.reduce_scatter_tensor, draw(2, 3), whole, op=op, group=group),
            )
    yield "broadcast", _into(dist.broadcast, draw(3, 4), group_src=last, group=group)
    outputs = [draw(2, 3, salt=9 + k) for k in range(size)]
    yield "all_gather", Case(call=partial(dist.all_gather, outputs, draw(2, 3), group=group), outputs=outputs)
    yield "all_gather_into_tensor", _into(dist.all_gather_into_tensor, draw(2 * size, 3), draw(2, 3), group=group)
    outputs = [draw(2, 3, salt=9 + k) for k in range(size)] if rank == 1 else []
    yield (
        "gather",
        Case(call=partial(dist.gather, draw(2, 3), outputs or None, group_dst=1, group=group), outputs=outputs),
    )
    given = [draw(2, 3, salt=k) for k in range(size)] if rank == last else None
    yield "scatter", _into(dist.scatter, draw(2, 3), given, group_src=last, group=group)
    here, there = [1 + k for k in range(size)], [1 + rank] * size  # rows to and from each rank
    yield (
        "all_to_all_single",
        _into(dist.all_to_all_single, draw(sum(there), 3, salt=9), draw(sum(here), 3), there, here, group=group),
    )
    outputs = [draw(rows, 3, salt=9) for rows in there]
    yield (
        "all_to_all",
        Case(
            call=partial(_all_to_all, outputs, [draw(rows, 3, salt=k) for k, rows in enumerate(here)], group=group),
            outputs=outputs,
        ),
    )


def _all_to_all(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: ProcessGroup, async_op: bool
) -> dist.Work | None:  # fmt: skip
    """gloo has it only since torch 2.13: there, what `all_to_all_single` brings."""
    if isinstance(group, staged_group.StagedGroup):
        return dist.all_to_all(outputs, inputs, group=group, async_op=async_op)
    rows = [len(each) for each in outputs]
    whole = torch.empty(sum(rows), *outputs[0].shape[1:], dtype=outputs[0].dtype)
    dist.all_to_all_single(whole, torch.cat(inputs), rows, [len(each) for each in inputs], group=group)
    for output, came in zip(outputs, whole.split(rows), strict=True):
        output.copy_(came)
    return dist.barrier(group, async_op=True) if async_op else None


def _sync(case: Case) -> bool:
    case.call(async_op=False)
    return True


def _waited(case: Case) -> bool:
    before = [output.clone() for output in case.outputs]
    work = case.call(async_op=True)
    dist.barrier()  # every rank has issued it by now, and may have what it waits for
    untouched = all(map(torch.equal, before, case.outputs))
    work.wait()
    work.wait()  # the second time nothing is left to do
    return untouched


def _polled(case: Case) -> bool:
    work = case.call(async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    return True


def _by_future(case: Case) -> bool:
    work = case.call(async_op=True)  # kept until its future is there
    work.get_future().wait()
    return True


WAYS = {"sync": _sync, "waited": _waited, "polled": _polled, "future": _by_future}
"""How a case is run to its end; False where an output was written before it was waited for."""


def _differences(gloo: ProcessGroup, staged: ProcessGroup, way: str, dtype: torch.dtype) -> list[str]:
    """The collectives whose outcome on any rank is not gloo's. Each must move something on some rank."""
    wrong, moved = [], []
    fresh = {name: case.outputs for name, case in _cases(gloo, dtype)}
    expected, found = dict(_cases(gloo, dtype)), dict(_cases(staged, dtype))
    for name, case in expected.items():
        _sync(case)
        if not WAYS[way](found[name]) or not all(map(torch.equal, case.outputs, found[name].outputs)):
            wrong.append(name)
        if not all(map(torch.equal, case.outputs, fresh[name])):
            moved.append(name)
    every = gathered([wrong, moved], gloo)
    assert {name for _, names in every for name in names} == set(expected), "a case does not move anything"
    return sorted({name for names, _ in every for name in names})


def _pairs(backend: str, members: Sequence[Sequence[int]]) -> ProcessGroup:
    """Of groups that every rank makes, the one of this rank."""
    made = [dist.new_group(list(ranks), backend=backend, timeout=datetime.timedelta(seconds=40)) for ranks in members]
    return next(each for each in made if isinstance(each, ProcessGroup))


@pytest.fixture(params=["world", "pairs"])
def groups(request: pytest.FixtureRequest) -> Iterator[tuple[ProcessGroup, ProcessGroup]]:
    """A group over gloo and a staged one of the same ranks."""
    members = [range(dist.get_world_size())] if request.param == "world" else [(0, 2), (1, 3)]
    both = _pairs("gloo", members), _pairs(staged_group.backend("cpu"), members)
    yield both
    dist.barrier()
    for group in both:
        dist.destroy_process_group(group)


pytestmark = [
    pytest.mark.dist(world=4),
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),  # names that torch 2.11 has, and 2.13 still
]
Both = tuple[ProcessGroup, ProcessGroup]


@pytest.mark.parametrize("way", WAYS)
def test_every_collective_of_the_staged_group_equals_gloos(groups: Both, way: str) -> None:
    for dtype in DTYPES:
        assert _differences(*groups, way, dtype) == [], dtype


def _wrote_nothing(work: staged_group.StagedWork) -> None:
    """Skips the copy back."""


def _summed_for_mean(
    carry: Callable[..., dist.Work], group: object, name: str, *given: object, **named: object
) -> dist.Work:
    for each in given:
        if getattr(each, "reduceOp", None) == ReduceOp.AVG:
            each.reduceOp = ReduceOp.SUM  # type: ignore[attr-defined]
    return carry(group, name, *given, **named)


def _off_by_a_row(
    carry: Callable[..., dist.Work], group: object, name: str, *given: object, **named: object
) -> dist.Work:
    if name in ("alltoall_base", "all_to_all_single"):
        output, sent, *splits = given
        given = (output, sent.roll(1, 0), *splits)  # type: ignore[attr-defined]
    return carry(group, name, *given, **named)


def test_the_comparison_with_gloo_sees_a_planted_fault(groups: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = partial(_differences, *groups, "sync", torch.float32)
    carry = staged_group.StagedGroup.carry
    with monkeypatch.context() as planted:
        planted.setattr(staged_group.StagedWork, "_write", _wrote_nothing)
        assert {"all_reduce sum", "broadcast", "all_gather", "gather", "all_to_all", "all_to_all_single"} <= set(
            compare()
        )
    with monkeypatch.context() as planted:
        planted.setattr(
            staged_group.StagedGroup, "carry", lambda *given, **named: _summed_for_mean(carry, *given, **named)
        )
        assert compare() == ["all_reduce avg", "reduce avg", "reduce_scatter avg", "reduce_scatter_tensor avg"]
    with monkeypatch.context() as planted:  # a copy that is not one: the collective works on what the caller holds
        planted.setattr(staged_copies, "host", lambda tensor: tensor.detach())
        assert "all_reduce sum" in _differences(*groups, "waited", torch.float32)
    with monkeypatch.context() as planted:
        planted.setattr(
            staged_group.StagedGroup, "carry", lambda *given, **named: _off_by_a_row(carry, *given, **named)
        )
        assert compare() == ["all_to_all_single"]


def test_dtypes_and_reductions_that_gloo_lacks_work_in_the_staged_group(groups: Both) -> None:
    _, staged = groups
    size, rank = staged.size(), staged.rank()
    for dtype in UNKNOWN_TO_GLOO:
        mine = (torch.arange(4.0) + rank).to(dtype)
        every = torch.stack([(torch.arange(4.0) + peer).to(dtype).to(torch.complex64) for peer in range(size)])
        came = torch.zeros(size, 4).to(dtype)
        dist.all_gather_into_tensor(came, mine, group=staged)
        assert torch.equal(came.to(torch.complex64), every), dtype
        outputs = [torch.zeros(1).to(dtype) for _ in range(size)]
        dist.all_to_all(outputs, list(mine[:size].split(1)), group=staged)
        assert torch.equal(torch.cat(outputs).to(torch.complex64), every[:, rank]), dtype
    scaled = dist._make_nccl_premul_sum(0.25)  # type: ignore[attr-defined]
    whole = torch.arange(2.0 * size) + rank
    dist.all_reduce(whole, op=scaled, group=staged)
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size) + rank, op=scaled, group=staged)
    total = 0.25 * (size * torch.arange(2.0 * size) + sum(range(size)))
    assert torch.equal(whole, total)
    assert torch.equal(part, total[2 * rank : 2 * rank + 2])


def test_point_to_point_messages_arrive_by_tag_and_in_order(groups: Both) -> None:
    _, staged = groups
    size, rank = staged.size(), staged.rank()
    to, source = (rank + 1) % size, (rank - 1) % size
    for tag, value in (
        (1, 10),
        (2, 20),
        (1, 11),
    ):  # the works are dropped, and the memory of their copies may be reused
        dist.isend(torch.full((1000,), float(value + rank)), group_dst=to, tag=tag, group=staged)
    gc.collect()
    came = torch.zeros(3, 1000)
    later = dist.irecv(came[2], group_src=source, tag=2, group=staged)
    dist.recv(came[0], group_src=source, tag=1, group=staged)
    dist.recv(came[1], group_src=source, tag=1, group=staged)
    assert came[2].eq(0).all()
    later.get_future().wait()
    assert came[:, 7].tolist() == [10.0 + source, 11.0 + source, 20.0 + source]
    mine, theirs = torch.arange(6.0).view(2, 3).t() + rank, torch.zeros(2, 3).t()  # a message may be strided
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.irecv, theirs, group=staged, group_peer=source),
        dist.P2POp(dist.isend, mine, group=staged, group_peer=to),
    ]):  # fmt: skip
        work.wait()
    assert torch.equal(theirs, torch.arange(6.0).view(2, 3).t() + source)
    if rank:
        dist.send(torch.tensor([rank]), group_dst=0, tag=5, group=staged)
    else:
        anyone = [torch.zeros(1, dtype=torch.int64) for _ in range(size - 1)]
        sources = [dist.recv(each, tag=5, group=staged) for each in anyone]
        ranks = dist.get_process_group_ranks(staged)
        assert sources == [ranks[int(each)] for each in anyone]
        assert sorted(sources) == ranks[1:]  # type: ignore[type-var]


def _functional(group: ProcessGroup) -> list[torch.Tensor]:
    size, rank = group.size(), group.rank()
    draw = Numbers(rank=rank, dtype=torch.float32)
    one, two = draw(2 * size, 3), draw(2 * size, 3, salt=1)
    splits = [1] * (size - 1) + [size + 1]
    asked = [
        functional.all_reduce(one, "avg", group), *functional.all_reduce_coalesced([one, two], "sum", group),
        functional.broadcast(one, size - 1, group), functional.all_gather_tensor(one, 1, group),
        *functional.all_gather_into_tensor_coalesced([one, two], group),
        functional.reduce_scatter_tensor(one, "sum", 0, group),
        *functional.reduce_scatter_tensor_coalesced([one, two], "avg", [0, 0], group),
        functional.all_to_all_single(
            one, [splits[rank]] * size, splits, group
        ),
    ]  # fmt: skip
    found = [functional.wait_tensor(each) for each in asked]
    ones = [draw(2, 3, salt=k) for k in range(2)]
    into = [torch.zeros(2 * size, 3) for _ in ones]
    with _coalescing_manager(group, async_ops=True) as manager:
        for each in ones:
            dist.all_reduce(each, group=group)
    manager.wait()
    with _coalescing_manager(group):
        for each, output in zip(ones, into, strict=True):
            dist.all_gather_into_tensor(output, each, group=group)
    with _coalescing_manager(group):
        for each, output in zip(ones, into, strict=True):
            dist.reduce_scatter_tensor(each, output, group=group)
    return [*found, *ones, *into]


def test_functional_and_coalesced_collectives_equal_gloos(groups: Both) -> None:
    gloo, staged = groups
    for number, (expected, found) in enumerate(zip(_functional(gloo), _functional(staged), strict=True)):
        assert torch.equal(expected, found), number
    ones = [torch.full((2,), 1.0 + staged.rank()), torch.full((2,), 3.0)]
    with _coalescing_manager(
        staged, torch.device("cpu"), async_ops=True
    ) as manager:  # the older way, which has a device
        for each in ones:
            staged.allreduce([each])
    before = [each.clone() for each in ones]
    manager.wait()
    assert [each[0].item() for each in before] == [1.0 + staged.rank(), 3.0]
    assert [each[0].item() for each in ones] == [sum(range(1, staged.size() + 1)), 3.0 * staged.size()]


def test_collectives_of_the_staged_group_are_recorded_with_its_ranks(groups: Both) -> None:
    _, staged = groups
    with watched() as watch:
        dist.all_reduce(torch.ones(2, 3), op=ReduceOp.MAX, group=staged)
        functional.wait_tensor(functional.all_reduce(torch.ones(2, 3), "max", staged))
    ranks = tuple(dist.get_process_group_ranks(staged))
    assert watch.diverged == ""
    assert watch.issued == 2 * [
        Collective(op="all_reduce", members=ranks, shapes=((2, 3),), dtypes=("float32",), reduce="max")
    ]


def test_the_staged_group_implements_every_collective_of_process_group() -> None:
    """A call that is not written here would go from C++ to gloo with tensors of the device."""
    calls = {
        name
        for name, each in vars(ProcessGroup).items()
        if not name.startswith("_register") and "Work" in (each.__doc__ or "")
    }
    assert len(calls) >= 20
    assert calls - set(vars(staged_group.StagedGroup)) == set()


def test_the_staged_group_has_its_own_name_and_refuses_what_nccl_refuses(groups: Both) -> None:
    gloo, staged = groups
    assert (staged.name(), dist.get_backend(staged)) == ("staged", "staged")
    assert dist.get_process_group_ranks(staged) == dist.get_process_group_ranks(gloo)
    assert staged.group_name != gloo.group_name
    for strided in (torch.zeros(4, 4)[:, ::2], torch.zeros(3, 4).t()):
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            dist.all_reduce(strided, group=staged)
    channels = torch.full((2, 3, 2, 2), 1.0 + staged.rank()).to(memory_format=torch.channels_last)
    dist.all_reduce(channels, group=staged)
    assert channels.eq(sum(range(1, 1 + staged.size()))).all()
    with pytest.raises(ValueError, match="are on cpu and meta: move them to one device"):
        dist.all_gather_into_tensor(torch.zeros(2, device="meta"), torch.zeros(2), group=staged)
    mine = torch.full((5,), 2.0 + staged.rank())
    dist.reduce(mine, group_dst=1, group=staged)
    assert mine.eq(sum(range(2, 2 + staged.size())) if staged.rank() == 1 else 2.0 + staged.rank()).all()
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16), group=staged)


def test_a_missing_rank_ends_a_collective_at_its_timeout() -> None:
    staged = dist.new_group(backend=staged_group.backend("cpu"), timeout=datetime.timedelta(seconds=2))
    kept = torch.ones(3)
    if staged.rank() == 0:
        work = staged.allreduce([kept])
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"(?i)timed? ?out"):
                work.wait()
        assert kept.eq(1).all()
        with pytest.raises(RuntimeError, match=r"(?i)timed? ?out"):
            work.get_future().wait()
    dist.barrier()
    dist.destroy_process_group(staged)


def test_a_split_of_the_staged_group_is_staged_and_has_its_own_ranks(groups: Both) -> None:
    _, staged = groups
    members = [staged.size() - 2, staged.size() - 1]
    part = staged.split_group(members, group_name=f"part of {staged.group_name}", group_desc="the last two")  # type: ignore[arg-type]
    assert (part is not None) == (staged.rank() in members)
    if part is not None:
        assert (part.name(), part.group_desc, part.size(), part.rank()) == (
            "staged",
            "the last two",
            2,
            members.index(staged.rank()),
        )
        part.allreduce([total := torch.tensor([staged.rank()])]).wait()
        assert total.item() == sum(members)
        part.shutdown()


def _trained(mesh: DeviceMesh) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.GELU(), torch.nn.Linear(10, 5))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(10 * step + mesh.get_local_rank())
        model(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor() for parameter in model.parameters()]


def _redistributed(mesh: DeviceMesh) -> list[torch.Tensor]:
    torch.manual_seed(0)
    part = DTensor.from_local(torch.arange(12.0).view(4, 3) * mesh.get_local_rank(), mesh, [Partial()])
    found = [part.full_tensor(), part.redistribute(placements=[Shard(1)]).to_local()]
    for places in ([Shard(0), Shard(1)], [Shard(1), Replicate()], [Replicate(), Shard(0)]):
        placed = distribute_tensor(torch.randn(5, 3), mesh, [Shard(0)]).redistribute(placements=places[:1])
        found += [placed.to_local(), placed.redistribute(placements=places[1:]).to_local(), placed.full_tensor()]
    return found


def test_fsdp_and_dtensor_over_the_staged_group_equal_gloo(groups: Both) -> None:
    gloo, staged = (DeviceMesh.from_group(group, "cpu") for group in groups)
    for work in (_trained, _redistributed):
        for expected, found in zip(work(gloo), work(staged), strict=True):
            assert torch.equal(expected, found), work.__name__


def test_a_pipeline_over_the_staged_group_equals_one_rank(groups: Both) -> None:
    _, staged = groups
    torch.manual_seed(0)
    stages = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(staged.size())]
    whole = copy.deepcopy(torch.nn.Sequential(*stages))
    given, target = torch.randn(8, 4), torch.randn(8, 4)
    mine = stages[staged.rank()]
    stage = PipelineStage(mine, staged.rank(), staged.size(), torch.device("cpu"), group=staged)
    losses: list[torch.Tensor] = []
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, to: (out - to).square().mean())
    if staged.rank() == 0:
        schedule.step(given)
    else:
        schedule.step(target=target, losses=losses) if stage.is_last else schedule.step()
    (whole(given) - target).square().mean().backward()
    for expected, found in zip(whole[staged.rank()].parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
