"""Sizes of the mesh: the axes multiply to the world, data parallelism is what the other axes leave, no rank is idle.

Two layouts are legal. `own-axis` has world = pp · dp · ep · tp; `borrowed` tiles one world twice, with pp · dp · cp ·
tp for dense parameters and pp · edp · ep · etp for experts.
"""

from math import prod

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.law._support.layouts import groups_of, needs_layout, numbers_in
from contracts.spec import Batch, Degrees, Layout, Mamba, Moe, Recipe, Stack, chosen

TILED = {
    "own-axis-2x4": (Degrees(tp=4), 8, "own-axis"),
    "own-axis-pp3-tp2-ep4": (Degrees(pp=3, tp=2, ep=4), 72, "own-axis"),
    "own-axis-ep5": (Degrees(ep=5), 15, "own-axis"),
    "borrowed-2x4": (Degrees(tp=4), 8, "borrowed"),
    "borrowed-pp3-tp2-cp2-ep4": (Degrees(pp=3, tp=2, cp=2, ep=4), 48, "borrowed"),
    # Legal, though 4 ranks are fewer than tp · ep: EP is carved out of the ranks that TP already counts.
    "borrowed-tp2-ep4-etp1-on-4": (Degrees(tp=2, ep=4, etp=1), 4, "borrowed"),
    "borrowed-cp4-tp2-ep8-etp1-on-8": (Degrees(cp=4, tp=2, ep=8, etp=1), 8, "borrowed"),
    "borrowed-etp-above-tp": (Degrees(tp=2, ep=3, etp=4), 24, "borrowed"),
}

_TILES: dict[Layout, tuple[tuple[str, ...], ...]] = {
    "own-axis": (("pp", "dp", "ep", "tp"),),
    "borrowed": (("pp", "dp", "cp", "tp"), ("pp", "edp", "ep", "etp")),
}


@contract("TOPO-01", asks="topology", cases=TILED, source="bringup")
def axis_sizes_multiply_to_the_world(stack: Stack, degrees: Degrees, world: int, layout: Layout) -> None:
    """The sizes of the axes multiply to the world size, once for dense parameters and once for experts.

    A validator that required tp · pp · ep to divide the world refused legal borrowed layouts and accepted illegal ones:
    in that layout EP overlaps data parallelism instead of multiplying it.
    """
    needs_layout(stack, layout)
    sizes = stack.topology(degrees, world, layout).sizes
    asked = {"pp": degrees.pp, "tp": degrees.tp, "ep": degrees.ep, "cp": degrees.cp}
    for axis, degree in asked.items():
        size = sizes.get(axis, 1 if axis == "cp" and layout == "own-axis" else None)
        assert size == degree, f"{axis} has size {size}, asked for {degree}"
    for axes in _TILES[layout]:
        known = [axis for axis in axes if axis in sizes]
        if "edp" in axes and len(known) < len(axes):
            continue  # edp and etp are reported by stacks that build those groups
        product = prod(sizes[axis] for axis in known)
        found = " * ".join(f"{axis} {sizes[axis]}" for axis in known)
        assert product == world, f"{found} is {product}, the world has {world}"


# degrees, world, layout, the axes whose product does not divide the world
MISFITS = {
    "own-axis-pp2-tp2-on-10": (Degrees(pp=2, tp=2), 10, "own-axis", (2, 2)),
    "own-axis-pp3-tp2-ep4-on-36": (Degrees(pp=3, tp=2, ep=4), 36, "own-axis", (3, 2, 4)),
    "own-axis-more-than-the-world": (Degrees(pp=2, tp=4, ep=4), 16, "own-axis", (2, 4, 4)),
    "borrowed-cp3-tp2-on-8": (Degrees(cp=3, tp=2), 8, "borrowed", (3, 2)),
    "borrowed-dense-alone": (Degrees(tp=3, ep=4, etp=1), 8, "borrowed", (3,)),
    # Both argument validators of Megatron accept the next two; they die only when the groups are made.
    "borrowed-tp2-ep4-on-4": (Degrees(tp=2, ep=4), 4, "borrowed", (2, 4)),
    "borrowed-ep16-on-8": (Degrees(ep=16), 8, "borrowed", (16,)),
    "borrowed-pp2-tp2-ep3-on-16": (Degrees(pp=2, tp=2, ep=3), 16, "borrowed", (2, 2, 3)),
}


@contract("TOPO-01a", asks="topology", cases=MISFITS, source="bringup")
def a_misfit_is_refused_with_both_numbers(
    stack: Stack, degrees: Degrees, world: int, layout: Layout, factors: tuple[int, ...]
) -> None:
    """Axes whose product does not divide the world size are refused, and the refusal names the world size and the
    product or its factors.

    A topology that is rounded down instead leaves ranks outside every group; they wait in the first collective.
    """
    needs_layout(stack, layout)
    refused = refusal_of(stack.topology, degrees, world, layout)
    numbers = numbers_in(refused)
    assert world in numbers, f"the refusal does not name the world ({world}): {refused}"
    named = prod(factors) in numbers or numbers.issuperset(factors)
    assert named, f"the refusal names neither {prod(factors)} nor {' * '.join(map(str, factors))}: {refused}"


TWICE_WRONG = {
    "pp2-tp3-ep5-on-8": (Degrees(pp=2, tp=3, ep=5, etp=1), 8, 6, 10),
    "pp2-cp3-ep7-on-32": (Degrees(pp=2, cp=3, ep=7), 32, 6, 14),
}


@contract(
    "TOPO-01b", asks="topology", cases=TWICE_WRONG, source="bringup", layout="borrowed", conventions=("misfits",)
)  # fmt: skip
def every_misfit_is_refused_at_once(stack: Stack, degrees: Degrees, world: int, dense: int, expert: int) -> None:
    """If neither the product of the dense axes nor that of the expert axes divides the world size, one refusal names
    both products, or only the first if the stack declares that.
    """
    refused = refusal_of(stack.topology, degrees, world, "borrowed")
    missing = {dense, expert} - numbers_in(refused)
    if chosen(stack, "misfits") == "first":
        words = (
            f"the refusal of world {world} names {2 - len(missing)} of {dense} and {expert}, expected one: {refused}"
        )
        assert len(missing) == 1, words
        return
    assert not missing, f"the refusal of world {world} leaves out {sorted(missing)} of {dense} and {expert}: {refused}"


OWN_AXIS = {  # degrees, world → data-parallel size: world / (pp · tp · ep)
    "pp2-tp2-on-4": (Degrees(pp=2, tp=2), 4, 1),
    "pp2-tp2-on-8": (Degrees(pp=2, tp=2), 8, 2),
    "pp4-tp2-ep3-on-72": (Degrees(pp=4, tp=2, ep=3), 72, 3),
    "tp2-ep2-on-8": (Degrees(tp=2, ep=2), 8, 2),
    "tp2-ep2-etp1-on-24": (Degrees(tp=2, ep=2, etp=1), 24, 6),
    "pp13-on-52": (Degrees(pp=13), 52, 4),
}


@contract("TOPO-02", asks="topology", cases=OWN_AXIS, source="bringup: effective DP under PP", layout="own-axis")
def dp_is_what_the_other_axes_leave(stack: Stack, degrees: Degrees, world: int, expected: int) -> None:
    """The effective data-parallel size is the world size divided by every other axis, the pipeline included.

    The H200 bring-up divided only by tp · ep. That is right without a pipeline; with one, runs with a single
    data-parallel rank were sent to the distributed Adam path.
    """
    _is_the_dp_of(stack, degrees, world, "own-axis", expected)


BORROWED = {  # degrees, world → data-parallel size of dense parameters: world / (pp · cp · tp); EP does not count
    "pp2-tp2-on-4": (Degrees(pp=2, tp=2), 4, 1),
    "pp2-tp2-on-8": (Degrees(pp=2, tp=2), 8, 2),
    "pp2-tp2-ep4-on-64": (Degrees(pp=2, tp=2, ep=4), 64, 16),
    "pp2-tp2-ep4-etp1-on-64": (Degrees(pp=2, tp=2, ep=4, etp=1), 64, 16),
    "pp3-cp2-tp2-ep4-on-96": (Degrees(pp=3, cp=2, tp=2, ep=4), 96, 8),
    "tp2-ep4-etp1-on-4": (Degrees(tp=2, ep=4, etp=1), 4, 2),
}


@contract("TOPO-02a", asks="topology", cases=BORROWED, source="bringup; Megatron-Core", layout="borrowed")
def dense_dp_does_not_count_borrowed_ep(stack: Stack, degrees: Degrees, world: int, expected: int) -> None:
    """In the borrowed layout the data-parallel size is world / (pp · cp · tp), and every data-parallel rank reads
    different data.

    Over 471 legal topologies, world / (pp · tp · ep) equals this number in 134, and in 33 it is not an integer.
    """
    _is_the_dp_of(stack, degrees, world, "borrowed", expected)


EXPERT = {  # degrees, world → ranks that hold the same expert shard: world / (pp · etp · ep); CP does not count
    "pp2-tp2-ep4-etp1-on-64": (Degrees(pp=2, tp=2, ep=4, etp=1), 64, 8),
    "pp2-tp2-ep4-etp2-on-64": (Degrees(pp=2, tp=2, ep=4, etp=2), 64, 4),
    "pp2-tp2-ep4-follows-tp-on-64": (Degrees(pp=2, tp=2, ep=4, etp=0), 64, 4),
    "pp3-cp2-tp2-ep4-on-96": (Degrees(pp=3, cp=2, tp=2, ep=4), 96, 4),
    "etp-above-tp": (Degrees(tp=2, ep=3, etp=4), 24, 2),
    "tp2-ep4-etp1-on-4": (Degrees(tp=2, ep=4, etp=1), 4, 1),
}


@contract("TOPO-02b", asks="topology", cases=EXPERT, source="bringup; Megatron-Core", layout="borrowed")
def expert_dp_is_counted_on_the_expert_axes(stack: Stack, degrees: Degrees, world: int, expected: int) -> None:
    """In the borrowed layout an expert shard has world / (pp · etp · ep) copies, whatever tp and cp are."""
    answer = stack.topology(degrees, world, "borrowed")
    edp = answer.expert_dp
    assert edp == expected, f"expert dp is {edp}, expected {expected} (world {world}, {degrees})"
    sizes = {len(members) for members in answer.groups.get("edp", ())} or {expected}
    assert sizes == {expected}, f"edp groups have {sorted(sizes)} members, expert dp is {edp}"


def _is_the_dp_of(stack: Stack, degrees: Degrees, world: int, layout: Layout, expected: int) -> None:
    answer = stack.topology(degrees, world, layout)
    assert answer.dp == expected, f"dp is {answer.dp}, expected {expected} (world {world}, {degrees})"
    sizes = {len(members) for members in groups_of(answer, "dp")}
    assert sizes == {expected}, f"dp groups have {sorted(sizes)} members, dp is {expected}"


def _recipe(sequence: int, micro: int, total: int, experts: int = 16, heads: int = 24) -> Recipe:
    """A small hybrid recipe: AEM at depth 12, grouped-query attention, experts, state-space groups."""
    return Recipe(
        name="idle-rank", family="test", pattern="AEM", depth=12, hidden=32 * heads, ffn_hidden=3072, heads=heads,
        kv_groups=heads // 2, seq_length=sequence, batch=Batch(micro=micro, total=total),
        mamba=Mamba(heads=48, groups=24), moe=Moe(experts=experts, top_k=2, expert_hidden=384, shared_hidden=0),
    )  # fmt: skip


Over = tuple[Degrees, int, Layout]

TP2_SP = Degrees(tp=2, sp=True)
CP4_TP2_SP = Degrees(cp=4, tp=2, sp=True)
BUSY = {  # recipe, (degrees, world, layout) → data-parallel size
    "one-sequence-a-rank": (_recipe(4096, 1, 4), (TP2_SP, 8, "own-axis"), 4),
    "own-axis-ep2-accumulates-3": (_recipe(1024, 2, 12), (Degrees(tp=2, ep=2, sp=True), 8, "own-axis"), 2),
    "borrowed-cp4-ep8": (_recipe(64, 3, 36), (Degrees(cp=4, tp=2, ep=8, etp=1, sp=True), 32, "borrowed"), 4),
    "borrowed-pp3-tp3": (_recipe(96, 1, 10, experts=12), (Degrees(pp=3, tp=3, ep=2), 18, "borrowed"), 2),
}


@contract("TOPO-10", asks="divide", cases=BUSY, source="modal")
def work_that_divides_is_accepted(stack: Stack, recipe: Recipe, over: Over, expected: int) -> None:
    """A stack accepts a recipe in which every rank has at least one sequence, and reports its data-parallel size."""
    degrees, world, layout = over
    needs_layout(stack, layout)
    dp = stack.divide(recipe, degrees, world, layout)
    assert dp == expected, f"divide gives dp {dp}, expected {expected}"


IDLE = {  # recipe, (degrees, world, layout), the numbers that do not fit: a count, and what should divide it
    "sequence-4095-over-tp2": (_recipe(4095, 1, 4), (TP2_SP, 8, "own-axis"), 4095, (2,)),
    "sequence-4-over-cp4-tp2": (_recipe(4, 1, 2), (CP4_TP2_SP, 16, "borrowed"), 4, (4, 2)),
    "batch-6-over-dp4": (_recipe(4096, 1, 6), (TP2_SP, 8, "own-axis"), 6, (4,)),
    "batch-smaller-than-dp": (_recipe(4096, 1, 3), (Degrees(), 8, "borrowed"), 3, (8,)),
    "batch-12-over-micro2-dp4": (_recipe(4096, 2, 12), (CP4_TP2_SP, 32, "borrowed"), 12, (2, 4)),
    "experts-12-over-ep16": (_recipe(4096, 1, 16, experts=12), (Degrees(ep=16), 16, "borrowed"), 12, (16,)),
    "no-rank-at-all": (_recipe(4096, 1, 4), (Degrees(), 0, "borrowed"), 0, ()),
    "heads-4-over-tp8": (_recipe(4096, 1, 2, heads=4), (Degrees(tp=8, sp=True), 16, "own-axis"), 4, (8,)),
}


@contract("TOPO-10a", asks="divide", cases=IDLE, source="modal F21")
def an_idle_rank_is_refused_before_launch(
    stack: Stack, recipe: Recipe, over: Over, shared: int, among: tuple[int, ...]
) -> None:
    """A sequence, batch, expert or head count that does not divide over the ranks is refused with both numbers.

    A rank with an empty shard compiles another graph than its peers, skips a collective that they enter, and the job
    hangs. The fix was to restore divisibility, not to change the collective.
    """
    degrees, world, layout = over
    needs_layout(stack, layout)
    what = f"{shared} over {' * '.join(map(str, among)) or 'no rank'}"
    refused = refusal_of(lambda _: stack.divide(recipe, degrees, world, layout), what)
    numbers = numbers_in(refused)
    assert shared in numbers, f"the refusal does not name {shared}: {refused}"
    named = prod(among) in numbers or numbers.issuperset(among)
    assert named, f"the refusal names neither {prod(among)} nor {' * '.join(map(str, among))}: {refused}"
