"""Sums of tensors over tensor-parallel ranks, by the function with which a stack's own layers sum."""

from contracts import instruments
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.law._support.layouts import layout_of
from contracts.spec import EXACT, Degrees, Group, World

IN_MEMORY: dict[str, tuple[Degrees, int, tuple[Group, ...], bool]] = {
    "row-by-row": (Degrees(tp=2), 2, ((0, 1),), False),
    "first-axis-fastest": (Degrees(tp=2), 2, ((0, 1),), True),
    "first-axis-fastest-on-4": (Degrees(tp=2), 4, ((0, 1), (2, 3)), True),
}


@contract("TOPO-05k", asks="reduced", cases=IN_MEMORY, source="Megatron-LM #5338", tier="dist")
def a_sum_over_tensor_parallel_ranks_has_all_of_them(
    stack: World, degrees: Degrees, world: int, groups: tuple[Group, ...], strided: bool
) -> None:
    """The function with which layers sum over tensor-parallel ranks returns the sum of those ranks' tensors, whether
    they are contiguous in memory or transposed.

    A collective wants one order of memory. What copies the tensor into it, sums the copy and returns the tensor returns
    each rank's own part: activations differ from rank to rank, and nothing fails.
    """
    import torch

    parts = {rank: torch.arange(35, dtype=torch.float32).view(5, 7) * (rank + 1) + rank for rank in range(world)}
    mine = next(group for group in groups if here().rank in group)
    given = instruments.numerics.array(parts[here().rank])
    got = stack.reduced(degrees, world, layout_of(stack, "own-axis", degrees), given, strided)
    want = torch.stack([parts[rank] for rank in mine]).sum(0)
    words = instruments.numerics.difference(f"the sum over ranks {list(mine)}", got, want, EXACT)
    assert not words, words
