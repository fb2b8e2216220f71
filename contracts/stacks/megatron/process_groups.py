"""Megatron's process groups on live ranks, over the existing default group or over one of this process only."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from contracts.instruments import numerics, staged_group
from contracts.instruments.ranks import held_groups
from contracts.spec import Array, Degrees, Group, LiveMesh, refuse
from contracts.stacks.megatron.shims import mcore
from contracts.stacks.megatron.topology import handed_out, handles

SEED = 1234
"""Of the generators of a device, the default of its training script."""


def live_mesh(degrees: Degrees, world: int, contribution: int) -> LiveMesh:
    """The groups of this rank between Megatron's initialisation and its end, and the sum over each group.

    Groups that Megatron leaves behind are listed in `after` and then destroyed, so that the next question starts from
    the same world.
    """
    before = held_groups()
    with _made_groups() as made:
        _initialise(degrees, world, None)
        groups = handed_out()
        sums = {axis: _total(group, contribution) for axis, group in handles().items()}
        held = held_groups()
        mcore("parallel_state").destroy_model_parallel()
        after = held_groups()
    return LiveMesh(groups=groups, sums=sums, calls=tuple(made), before=before, held=held, after=after)


def reduced(degrees: Degrees, world: int, tensor: Array, strided: bool) -> Array:
    """What its `reduce_from_tensor_model_parallel_region` returns, which its documentation names for layers of one's
    own."""
    given = numerics.tensor(tensor, strided=strided)
    with parallel(degrees, world):
        return numerics.array(mcore("tensor_parallel").reduce_from_tensor_model_parallel_region(given))


def _total(group: Any, contribution: int) -> int:
    value = torch.tensor(contribution)
    dist.all_reduce(value, group=group)
    return int(value.item())


@contextlib.contextmanager
def parallel(
    degrees: Degrees, world: int, *, virtual: int | None = None, copies: int = 1, device: str = "cpu"
) -> Iterator[None]:
    """Megatron's groups over the first `world` ranks; over this process only if `world` is 1.

    Args:
        virtual: chunks of the model on one rank. copies: of sharded parameters.
        device: whose tensors the groups carry. Its generators are seeded as Megatron's training script does.

    Raises:
        Refused: Megatron refuses the degrees; in its own words.
    """
    with _default_group(world, device), _made_groups():
        _initialise(degrees, world, virtual, copies)
        generators = mcore("tensor_parallel.random")
        try:
            if device != "cpu":
                generators.model_parallel_cuda_manual_seed(SEED)
            yield
        finally:
            if device != "cpu":
                generators.get_cuda_rng_tracker().reset()
            state = mcore("parallel_state")
            state.destroy_model_parallel()
            # Its end forgets some. A fork that drops one of them waits for threads that it does not have.
            for name, held in [*vars(state).items()]:
                if isinstance(held, dist.ProcessGroup):
                    setattr(state, name, None)


def _initialise(degrees: Degrees, world: int, virtual: int | None, copies: int = 1) -> None:
    if dist.get_world_size() != world:
        raise AssertionError(f"{dist.get_world_size()} ranks are here, {world} were asked for")
    state = mcore("parallel_state")
    try:
        state.initialize_model_parallel(
            tensor_model_parallel_size=degrees.tp,
            pipeline_model_parallel_size=degrees.pp,
            virtual_pipeline_model_parallel_size=virtual,
            context_parallel_size=degrees.cp,
            expert_model_parallel_size=degrees.ep,
            expert_tensor_parallel_size=degrees.etp or None,
            num_distributed_optimizer_instances=copies,
            create_gloo_process_groups=False,  # the groups already use gloo
        )
    except (AssertionError, RuntimeError) as error:
        state.destroy_model_parallel()
        words = " ".join(str(error).split())
        raise refuse("degrees", f"{degrees} over {world}", words, "change a degree or the world") from None


@contextlib.contextmanager
def _made_groups() -> Iterator[list[Group]]:
    """Members of each group that is created inside. At the end the remaining groups are destroyed, last one first."""
    made: list[Group] = []
    handles: list[Any] = []
    real = dist.new_group

    def recorder(*arguments: Any, **named: Any) -> Any:
        handle = real(*arguments, **named)
        ranks = named.get("ranks", arguments[0] if arguments else None)
        made.append(tuple(ranks if ranks is not None else range(dist.get_world_size())))
        handles.append(handle)
        return handle

    with _replaced(dist, "new_group", recorder):
        try:
            yield made
        finally:
            for handle in reversed(handles):
                if handle is not dist.GroupMember.NON_GROUP_MEMBER:
                    with contextlib.suppress(ValueError):  # Megatron destroyed it itself
                        dist.destroy_process_group(handle)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, put: Any) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, put)
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextlib.contextmanager
def _default_group(world: int, device: str) -> Iterator[None]:
    """A default group of `world` ranks: the existing one, or one of this process only."""
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo" if device == "cpu" else staged_group.backend(device),
            store=dist.HashStore(),  # type: ignore[attr-defined]  # public, and left out of the stubs
            rank=0,
            world_size=1,
        )
        try:
            yield
        finally:
            dist.destroy_process_group()
    elif world == 1 and dist.get_world_size() > 1:
        with _alone():
            yield
    else:
        yield


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A default group of this process only, inside a world of several.

    Megatron asks torch for the number of ranks, and torch has no public way to switch worlds. So the default group is
    replaced with `_update_default_pg`, which torch 2.1 to 2.13 has. `group_count` gives names to groups, and must be
    equal on all ranks afterwards, even if only some had such a group. `pg_group_ranks` maps ranks of the world to ranks
    of a group; in a world of one this rank is 0, and torch's checkpoints look it up. Only this function uses the three.
    """
    everybody, inner = dist.group.WORLD, dist.distributed_c10d
    own = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    count = inner._world.group_count
    inner._update_default_pg(own)
    inner._world.pg_group_ranks[own] = {0: 0}
    try:
        yield
    finally:
        inner._update_default_pg(everybody)
        inner._world.group_count = count
        dist.destroy_process_group(own)
