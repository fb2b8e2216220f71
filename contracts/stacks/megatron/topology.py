"""Megatron's topology: the process groups that its own initialiser creates. Runs inside Megatron's environment.

Every answer comes from a real call of `parallel_state.initialize_model_parallel` under torch's fake process group,
which forms groups of any size in one process and moves no data. Nothing here computes a group. The lists of Megatron's
rank generators, its `new_group` calls, and the results of its getters are three records of one run, and must agree.
"""

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from contracts.spec import Degrees, GradientReduction, Group, GroupCall, Kind, Topology, refuse

EVERY_RANK_UP_TO = 16  # a larger world is initialised on three of its ranks: the first, the last and one between
ONE_RANK_FROM = 2048  # half a second per rank and more

GENERATED = {
    "pp": ("dense", "pp"), "dp": ("dense", "dp"), "cp": ("dense", "cp"), "tp": ("dense", "tp"),
    "dp_cp": ("dense", "dp-cp"), "ep": ("expert", "ep"), "edp": ("expert", "dp"), "etp": ("expert", "tp"),
}  # fmt: skip
"""Axis → which of Megatron's two rank generators lists its groups, and under which token."""

DESCRIBED = {
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
}
"""Megatron's description of a group → axis. Groups with other descriptions do not belong to our axes."""


class Disagreement(Exception):
    """Two records of the same run differ, so there is no answer."""


@dataclass(kw_only=True)
class Run:
    """The initialisation of one rank: its rank generators, and its `new_group` calls in order."""

    generators: list[Any] = field(default_factory=list)
    calls: list[tuple[str, Group]] = field(default_factory=list)

    def generated(self, axis: str) -> tuple[Group, ...]:
        """Every group of an axis, as the rank generator lists them."""
        grid, token = GENERATED[axis]
        dense, expert = self.generators
        return tuple(tuple(group) for group in (dense if grid == "dense" else expert).get_ranks(token))

    def created(self, axis: str) -> tuple[Group, ...]:
        """Every group of an axis, as they were created."""
        return tuple(members for described, members in self.calls if DESCRIBED.get(described) == axis)


def topology(degrees: Degrees, world: int) -> Topology:
    """Sizes and groups of every axis.

    Raises:
        Refused: Megatron refuses the degrees; in its own words.
        Disagreement: its rank generators, its `new_group` calls and its getters differ.
    """
    _check_rank(0, world)
    groups: dict[str, tuple[Group, ...]] = {}
    for rank in _ranks_to_ask(world):
        with _initialised(degrees, world, rank) as run:
            if not groups:
                groups = {axis: run.generated(axis) for axis in GENERATED}
            for axis, members in groups.items():
                _agree(f"rank {rank} creates the {axis} groups", run.created(axis), members)
            for axis, own in handed_out().items():
                found = tuple(group for group in groups[axis] if rank in group)
                _agree(f"rank {rank} is handed the {axis} group", (own,), found)
    return Topology(
        world=world,
        layout="borrowed",
        dp=len(groups["dp"][0]),
        expert_dp=len(groups["edp"][0]),
        sizes={axis: len(members[0]) for axis, members in groups.items()},
        groups=groups,
    )


def group_calls(degrees: Degrees, world: int, rank: int) -> tuple[GroupCall, ...]:
    """The `torch.distributed.new_group` calls that a rank makes, in order.

    A group that belongs to none of our axes is named by its description in lower case: `model_parallel`, `embedding`.
    """
    _check_rank(rank, world)
    with _initialised(degrees, world, rank) as run:
        return tuple(GroupCall(members=members, axes=(_axis(described),)) for described, members in run.calls)


def gradient_reduction(degrees: Degrees, world: int, rank: int, kind: Kind) -> GradientReduction:
    """What Megatron's data-parallel wrapper does to a gradient of ones on `rank`.

    The wrapper is built around one dense or one expert parameter and told to synchronise, and the group of its
    `all_reduce` is recorded. torch's fake group does not change the data. So the ones become the factor by which every
    rank scales its part, and the divisor is the inverse of that factor.
    """
    _check_rank(rank, world)
    torch: Any = importlib.import_module("torch")
    wrapper = importlib.import_module("megatron.core.distributed")
    transformer = importlib.import_module("megatron.core.transformer")
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = lambda *device: None
    with _initialised(degrees, world, rank):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.zeros(4))
        module.weight.allreduce = kind == "dense"
        config = transformer.TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=8)
        wrapped = wrapper.DistributedDataParallel(config, wrapper.DistributedDataParallelConfig(), module)
        module.weight.main_grad.fill_(1.0)
        with _recorded(torch.distributed, "all_reduce") as reduced:
            wrapped.finish_grad_sync()
            groups = [tuple(torch.distributed.get_process_group_ranks(call["group"])) for call in reduced]
            sums = [call.get("op", torch.distributed.ReduceOp.SUM) for call in reduced]
        factor = float(module.weight.main_grad[0])
    if len(groups) > 1 or any(op != torch.distributed.ReduceOp.SUM for op in sums):
        raise Disagreement(f"one gradient was reduced by {len(groups)} collectives: {groups}")
    divisor = round(1 / factor)
    if abs(divisor * factor - 1) > 1e-6:
        raise Disagreement(f"a gradient is scaled by {factor}, which is not one over a number of ranks")
    [ranks] = groups or [(rank,)]
    return GradientReduction(ranks=ranks, divisor=divisor)


def _ranks_to_ask(world: int) -> list[int]:
    if world <= EVERY_RANK_UP_TO:
        return list(range(world))
    return [world // 3] if world >= ONE_RANK_FROM else [0, world // 3, world - 1]


def _check_rank(rank: int, world: int) -> None:
    if world < 1:
        raise refuse("world", world, "must be at least 1", "give the number of ranks")
    if not 0 <= rank < world:
        raise refuse("rank", rank, f"must lie in 0 … {world - 1}", "count ranks from 0")


def _agree(what: str, one: tuple[Group, ...], other: tuple[Group, ...]) -> None:
    if one != other:
        different = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), (len(one), len(other)))
        raise Disagreement(
            f"{what} otherwise than its rank generator lists them: {different[0]} against {different[1]}"
        )


def _axis(described: str) -> str:
    return DESCRIBED.get(described, described.removesuffix("_GROUP").lower())


@contextlib.contextmanager
def _initialised(degrees: Degrees, world: int, rank: int) -> Iterator[Run]:
    """Megatron initialised as one rank of a world, and destroyed at the end.

    Without the gloo copies of its groups, which would need real peers.
    """
    dist: Any = importlib.import_module("torch.distributed")
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    state: Any = importlib.import_module("megatron.core.parallel_state")
    dist.init_process_group("fake", rank=rank, world_size=world, store=fake.FakeStore())
    run = Run()
    real = state.RankGenerator

    def generator(*arguments: Any, **named: Any) -> Any:
        run.generators.append(real(*arguments, **named))
        return run.generators[-1]

    try:
        with _recorded(dist, "new_group", dist.GroupMember.NON_GROUP_MEMBER, _of_others(rank, world)) as calls:
            state.RankGenerator = generator
            try:
                state.initialize_model_parallel(
                    tensor_model_parallel_size=degrees.tp,
                    pipeline_model_parallel_size=degrees.pp,
                    context_parallel_size=degrees.cp,
                    expert_model_parallel_size=degrees.ep,
                    expert_tensor_parallel_size=degrees.etp or None,
                    create_gloo_process_groups=False,
                )
            except (AssertionError, RuntimeError, ValueError) as error:
                if "megatron" not in traceback.extract_tb(error.__traceback__)[-1].filename:
                    raise
                words = " ".join(str(error).split())
                raise refuse("degrees", f"{degrees} over {world}", words, "change a degree or the world") from None
            finally:
                state.RankGenerator = real
        run.calls = [(call["group_desc"], tuple(call["ranks"])) for call in calls]
        yield run
    finally:
        state.destroy_model_parallel()
        dist.destroy_process_group()


def _of_others(rank: int, world: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a call creates a legal group without this rank. torch then only returns a constant, and such calls take
    half of the time of a world of 65 536 ranks."""

    def of_others(call: dict[str, Any]) -> bool:
        ranks = call["ranks"]
        sound = len(set(ranks)) == len(ranks) and min(ranks) >= 0 and max(ranks) < world
        return sound and rank not in ranks

    return of_others


@contextlib.contextmanager
def _recorded(
    module: Any, name: str, constant: Any = None, known: Callable[[dict[str, Any]], bool] = lambda call: False
) -> Iterator[list[dict[str, Any]]]:
    """Records the named arguments of every call of a function. The function itself runs, unless it is `known` to return
    the constant."""
    real: Callable[..., Any] = getattr(module, name)
    calls: list[dict[str, Any]] = []

    def recorder(*arguments: Any, **named: Any) -> Any:
        calls.append(named)
        return constant if known(named) else real(*arguments, **named)

    setattr(module, name, recorder)
    try:
        yield calls
    finally:
        setattr(module, name, real)


def handles() -> dict[str, Any]:
    """The group of each axis, from Megatron's getters on this rank."""
    state: Any = importlib.import_module("megatron.core.parallel_state")
    return {
        "pp": state.get_pipeline_model_parallel_group(),
        "dp": state.get_data_parallel_group(),
        "cp": state.get_context_parallel_group(),
        "tp": state.get_tensor_model_parallel_group(),
        "dp_cp": state.get_data_parallel_group(with_context_parallel=True),
        "ep": state.get_expert_model_parallel_group(),
        "edp": state.get_expert_data_parallel_group(),
        "etp": state.get_expert_tensor_parallel_group(),
    }


def handed_out() -> dict[str, Group]:
    """The members of each of those groups."""
    dist: Any = importlib.import_module("torch.distributed")
    return {axis: tuple(dist.get_process_group_ranks(group)) for axis, group in handles().items()}
