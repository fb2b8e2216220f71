"""The bytes that one rank sends in a step of NAM56R at true size, before a GPU is touched; of a small transformer in
the same lanes, where a stack has no such hybrid or its dry run no such memory.

Every bound follows from the sizes of the recipe: parameters counted tensor by tensor, tokens times width. The figures
of the reference stack stand, lane by lane, in snapshots/test_true_size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.full_size import (
    BESIDE_EP,
    BESIDE_TP,
    BYTES,
    LANES,
    LETTERS,
    LITTLE,
    RUNGS,
    WHOLE,
    Lane,
    Stack,
    bytes_of,
    dry_run_step,
    elements,
    elements_per_group,
    letters,
    of_ends,
    on_rungs,
    parameters,
    ring_bytes,
    sorted_by_purpose,
)
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.spec import Group, Recipe, Rehearsal, Routing, Sent, chosen

SHARDED = BESIDE_EP | {
    name: LANES[name] for name in ("fsdp8", "hsdp-2x8", "tp2-sp-ep2-fsdp2", "borrowed-tp2-sp-ep4-fsdp4")
}
IN_SEQUENCE = {name: LANES[name] for name in ("tp2-sp-ep2-fsdp2", "borrowed-tp2-sp-ep4-fsdp4")}
ALL = LANES | BESIDE_TP | BESIDE_EP


@contract("TRAF-04a", asks="rehearse", cases=on_rungs(SHARDED), needs=(), source="hub; playbook: FSDP2; F02",
          conventions=("gathered-weights",))  # fmt: skip
def sharded_weights_are_gathered_twice_at_most(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """A rank puts its shard of each parameter into one all-gather before the forward pass and at most one before the
    backward pass, layer by layer, in a dtype no wider than the parameter's. Weights of layers are gathered for the
    backward pass too, unless the stack declares that it keeps them.

    With a further gather, with float64, or with one collective per tensor, a step has the right numbers and takes twice
    the time. If layers stay gathered after the forward pass, a rank holds all weights at once: as much memory as
    without shards, of which the budget knows nothing.
    """
    found = dry_run_step(stack, recipe, lane)
    _weights(found, recipe, lane)
    _gathered_again(found, recipe, lane, chosen(stack, "gathered-weights") == "again")


@contract("TRAF-04b", asks="rehearse", cases=on_rungs(ALL), needs=(), source="hub; F01 F02")
def each_gradient_is_reduced_once(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """Each gradient is reduced once, in float32, over the ranks that saw other data; a sharded gradient is
    reduce-scattered, and ranks that hold the same shard reduce only that shard.

    An all-reduce in place of a reduce-scatter sends twice the bytes. Reducing experts as if every rank held all of them
    sends EP times the bytes.
    """
    _gradients(dry_run_step(stack, recipe, lane), recipe, lane)


@contract("TRAF-04c", asks="rehearse", cases=on_rungs(IN_SEQUENCE | BESIDE_TP), needs=(),
          conventions=("gathered-input",), source="hub; bringup; arXiv 2205.05198")  # fmt: skip
def the_stream_travels_in_and_out_of_each_mixer(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """Under sequence parallel, the residual stream is all-gathered before each mixer and reduce-scattered after it, and
    the reverse in the backward pass, in 16 bits.

    Nothing else of its size goes over TP, and the gradients of parameters that TP ranks hold alike are summed once.
    """
    again = chosen(stack, "gathered-input") == "again"
    _stream(dry_run_step(stack, recipe, lane), recipe, lane, again, _copies_of_other_shards(stack, recipe, lane))


def _copies_of_other_shards(stack: Stack, recipe: Recipe, lane: Lane) -> Iterator[int]:
    """How many elements each of the ranks with the other shards sums over its TP ranks."""
    for rank in lane.shard[1:] if lane.execution.fsdp else ():
        its = replace(lane, tp=tuple(rank + each for each in lane.tp))
        found = sorted_by_purpose(dry_run_step(stack, recipe, lane, rank), recipe, its)
        yield sum(map(elements, found.get("copies", [])))


def _routed(lanes: Mapping[str, Lane]) -> dict[str, tuple[Recipe, Lane, Routing]]:
    """The lanes under a balanced and a crowded routing; few routers of other stacks can be told to crowd."""
    found: dict[str, tuple[Recipe, Lane, Routing]] = {}
    for name, (recipe, lane) in on_rungs(lanes).items():
        case, at, rung = name.partition("@")
        found[f"{case}-balanced{at}{rung}"] = (recipe, lane, "balanced")
        if not rung:
            found[f"{case}-crowded"] = (recipe, lane, "crowded")
    return found


@contract(
    "TRAF-04d", asks="rehearse", cases=_routed(IN_SEQUENCE | BESIDE_EP), needs=("experts",), source="hub; bringup; F01"
)
def rows_travel_to_their_expert_and_back(stack: Stack, recipe: Recipe, lane: Lane, routing: Routing) -> None:
    """In each expert layer, a rank sends one 16-bit row per token and chosen expert, there and back, in the forward and
    in the backward pass: no padded rows and no tokens of other ranks.

    Only integer counts go before the rows, and a rank receives as many rows as are sent to it. With experts 0 … k - 1
    chosen by every token, the first EP rank receives every row and the others none.
    """
    found = dry_run_step(stack, recipe, lane, routing=routing)
    _rows(found, recipe, lane, routing)
    _received(found, recipe, lane, 0, routing)
    if routing == "crowded":
        last = dry_run_step(stack, recipe, lane, rank=lane.ep[-1], routing=routing)
        _received(last, recipe, lane, len(lane.ep) - 1, routing)


@contract("TRAF-04e", asks="rehearse", cases=on_rungs(ALL), needs=(), source="hub; F02")
def nothing_else_is_large(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """Messages that are neither weights, gradients, the residual stream nor expert rows take less than 64 KiB a step.

    A norm is one number, a loss is one number, and a count is one number per expert.
    """
    _rest(dry_run_step(stack, recipe, lane), recipe, lane)


WHOLE_LANES = {name: (WHOLE, lane) for name, lane in LANES.items()} | {
    "hsdp-8x8": (
        WHOLE,
        Lane(
            execution=own_axis(64, fsdp=True, replicas=8), shard=tuple(range(8)), expert_shard=tuple(range(8)),
            copies=tuple(range(0, 64, 8)),
        ),
    ),
}  # fmt: skip


@contract("TRAF-04f", asks="rehearse", cases=WHOLE_LANES, source="hub", slow=True, conventions=("gathered-input",))
def a_step_of_nam56r_sends_what_its_sizes_say(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """At full depth, in each lane, the bytes sent for weights, gradients, residual stream, expert rows and the rest
    follow from the recipe's sizes: 52 layers cost 52 times one layer.
    """
    found = dry_run_step(stack, recipe, lane)
    if lane.execution.fsdp:
        _weights(found, recipe, lane)
    _gradients(found, recipe, lane)
    if len(lane.tp) > 1:
        _stream(found, recipe, lane, chosen(stack, "gathered-input") == "again")
    if len(lane.ep) > 1:
        _rows(found, recipe, lane)
    _rest(found, recipe, lane)


def _ranks(world: int) -> Group:
    return tuple(range(world))


def _grown(ranks: int) -> dict[str, tuple[Lane, Lane]]:
    """A world of eight, and one of so many ranks."""
    every, eighth = _ranks(ranks), tuple(range(0, ranks, 8))
    return {
        "dp": (LANES["dp8"], Lane(execution=own_axis(ranks), shard=every, expert_shard=every)),
        "fsdp": (LANES["fsdp8"], Lane(execution=own_axis(ranks, fsdp=True), shard=every, expert_shard=every)),
        "hsdp": (
            LANES["fsdp8"],
            Lane(
                execution=own_axis(ranks, fsdp=True, replicas=ranks // 8), shard=_ranks(8), expert_shard=_ranks(8),
                copies=eighth,
            ),
        ),
        "borrowed-ep8-fsdp": (
            Lane(execution=borrowed(8, ep=8, etp=1, fsdp=True), shard=_ranks(8), expert_shard=(0,), ep=_ranks(8)),
            Lane(execution=borrowed(ranks, ep=8, etp=1, fsdp=True), shard=every, expert_shard=eighth, ep=_ranks(8)),
        ),
    }  # fmt: skip


GROWN = {name: (LETTERS, *lanes) for name, lanes in _grown(512).items()} | {
    f"{name}@{rung}": (recipe, *lanes)
    for name, lanes in _grown(64).items()
    for rung, recipe in RUNGS.items()
    if rung == "pairs" or len(lanes[0].ep) == 1
}
PADDING = 1.03  # shards of equal length


@contract("TRAF-05a", asks="rehearse", cases=GROWN, needs=(), source="playbook", slow=True)
def bytes_of_a_rank_do_not_grow_from_8_to_512(stack: Stack, recipe: Recipe, few: Lane, many: Lane) -> None:
    """From 8 to 512 data-parallel ranks (64 for a small transformer), with equally many tokens on each, the bytes over
    a rank's link grow by at most a seventh, as a ring of 512 does against a ring of 8, plus the bytes of tensors that
    are sharded or replicated only in the larger world.

    A dimension smaller than the world is cut into shards that are mostly padding: sixteen experts over 512 ranks, cut
    between experts, are gathered thirty-two times over.
    """
    before, after = (ring_bytes(dry_run_step(stack, recipe, lane)) for lane in (few, many))
    ranks, others = many.execution.world, few.execution.world
    ring = (1 - 1 / ranks) / (1 - 1 / others)  # each link of a ring of n carries (n - 1) / n of what is reduced
    limit = (before * ring + _only_in_the_larger(recipe, few, many)) * PADDING
    assert after <= limit, (
        f"a rank's link carries {after / before:.2f} times as much among {ranks} ranks as among 8: {after:.0f} bytes, "
        f"expected {limit:.0f} at most"
    )


def _only_in_the_larger(recipe: Recipe, few: Lane, many: Lane) -> float:
    """Bytes that only the larger world exchanges: reductions of shards over replicas, and two gathers and a reduction
    of experts that have no other copy in the smaller world.
    """
    alike, cut, experts = parameters(recipe, many)
    found = 0.0
    if len(many.copies) > len(few.copies):
        found += 2 * 4 * (alike + cut + experts) / len(many.shard)
    if len(many.expert_shard) > len(few.expert_shard) == 1:
        found += 3 * 4 * experts
    return found


# one check per purpose
def _weights(found: Rehearsal, recipe: Recipe, lane: Lane) -> None:
    gathers = sorted_by_purpose(found, recipe, lane).get("weights", [])
    for members, want in _by_group(recipe, lane).items():
        shard = want / len(members)
        got = sum(elements(each) for each in gathers if found.groups[each.group] == members)
        words = f"{got} elements are put into all-gathers over {list(members)}, a rank's shard has {shard:.0f}"
        assert shard <= got, f"{words}: not all is gathered"
        assert got <= 2 * shard, f"{words}: more than twice"
    wide = [each for each in gathers if any(BYTES[dtype] > 4 for dtype in each.dtypes)]
    assert not wide, f"{len(wide)} of {len(gathers)} all-gathers of weights are in {wide[0].dtypes[0]}"
    most = 2 * (2 * recipe.depth + 3)  # each layer, its experts, embedding and head; forward and backward
    words = f"{len(gathers)} all-gathers bring the weights of {recipe.depth} layers, at most {most}"
    assert len(gathers) <= most, words


def _gathered_again(found: Rehearsal, recipe: Recipe, lane: Lane, again: bool) -> None:
    """Whether the weights of layers are gathered twice; if not, all are gathered once."""
    gathers, ends = sorted_by_purpose(found, recipe, lane).get("weights", []), of_ends(recipe, lane)
    for members, want in _by_group(recipe, lane).items():
        outside = (ends if members == lane.shard else 0) / len(members)
        layers = want / len(members) - outside
        got = sum(elements(each) for each in gathers if found.groups[each.group] == members)
        words = f"{got} elements are put into all-gathers over {list(members)}, where a rank has {layers:.0f} of layers"
        if again:
            assert got - outside > 1.9 * layers, f"{words}: they are not gathered again for the backward pass"
        else:
            assert got - outside < 1.1 * layers, f"{words}: they are not kept until the backward pass"


def _gradients(found: Rehearsal, recipe: Recipe, lane: Lane) -> None:
    issued = sorted_by_purpose(found, recipe, lane).get("gradients", [])
    reductions = [each for each in issued if bytes_of(each) > LITTLE // 8]
    sums, fsdp = elements_per_group(found, issued), lane.execution.fsdp
    for members, want in _by_group(recipe, lane).items():
        what = f"{sums[members]} elements are reduced over {list(members)}, expected {want}"
        assert want <= sums[members] <= want * 1.001 + LITTLE // 4, what
        here = [each for each in reductions if found.groups[each.group] == members]
        whole = sum(elements(each) for each in here if each.op == "all_reduce")
        assert not (fsdp and whole), f"{whole} elements of sharded gradients are all-reduced over {list(members)}"
    if len(lane.copies) > 1:
        shard = sum(want / len(members) for members, want in _by_group(recipe, lane).items())
        got = sums[lane.copies]
        words = f"{got} elements are reduced over {list(lane.copies)}, which hold the same {shard:.0f}"
        assert shard <= got <= shard * 1.001 + LITTLE // 4, words
    narrow = [each.dtypes[0] for each in reductions if each.dtypes[0] not in ("float32", "float64")]
    assert not narrow, f"gradients are reduced in {narrow[0]}"


def _by_group(recipe: Recipe, lane: Lane) -> Counter[Group]:
    """Group → parameters of a rank that are cut or reduced over it."""
    alike, cut, experts = parameters(recipe, lane)
    sums: Counter[Group] = Counter()
    for members, count in ((lane.shard, alike + cut), (lane.expert_shard, experts)):
        if len(members) > 1:
            sums[members] += count
    return sums


def _stream(found: Rehearsal, recipe: Recipe, lane: Lane, again: bool, elsewhere: Iterable[int] = ()) -> None:
    """
    Args:
        again: whether a rank keeps its run of a mixer's input, and gathers the whole anew in the backward pass.
        elsewhere: elements that ranks with other shards sum over TP, where gradients may be summed shard by shard.
    """
    sorts, D = sorted_by_purpose(found, recipe, lane), recipe.hidden
    tokens = recipe.seq_length * lane.execution.microbatches
    sent = len(lane.ep) > 1 and recipe.moe is not None and not recipe.moe.shared_hidden  # each rank's own tokens
    mixers = recipe.depth - (letters(recipe).count("E") if sent else 0)
    once = mixers + 1  # and the logits forward, the embedding backward
    for op, size, crossings in (
        ("all_gather", tokens * D // len(lane.tp), (3 if again else 2) * once),
        ("reduce_scatter", tokens * D, 2 * once),
    ):
        issued = [each for each in sorts.get("stream", []) if each.op == op]
        got = sum(elements(each) for each in issued)
        words = f"{got / size:.4g} times the residual stream goes into {op} over TP, expected {crossings}"
        assert got == crossings * size, words
        wide = 2 * (crossings + 2) * size  # the embedding may be in float32
        assert bytes_of(*issued) <= wide, f"{bytes_of(*issued)} bytes go into {op} over TP, at most {wide} in 16 bits"
    whole = [each for each in sorts.get("stream", []) if each.op == "all_reduce"]
    assert not whole, f"{_shape(whole[0])} is all-reduced over TP, and {len(whole) - 1} more of its size"
    alike = parameters(recipe, lane)[0]
    got = sum(elements(each) for each in sorts.get("copies", []))
    limit = alike + 8 * tokens + LITTLE // 4
    assert got <= limit, (
        f"{got} elements are summed over TP, whose ranks hold {alike} parameters alike; at most {limit}"
    )
    if got < alike / 2:  # who sums whole gradients sums more
        got += sum(elsewhere)
    assert got >= alike - D, f"{got} elements are summed over TP, whose ranks hold {alike} parameters alike"


def _shape(each: Sent) -> str:
    return "x".join(map(str, each.shapes[0]))


def _rows(found: Rehearsal, recipe: Recipe, lane: Lane, routing: Routing = "balanced") -> None:
    """Rows of rank 0: it sends its own and gets them back, and receives those of others and returns them."""
    sorts, layers, D = sorted_by_purpose(found, recipe, lane), letters(recipe).count("E"), recipe.hidden
    issued = sorts.get("rows", [])
    taken = 1 if routing == "balanced" else len(lane.ep)
    want = 2 * (1 + taken) * layers * _rows_of_a_rank(recipe, lane) * D
    got = sum(elements(each) for each in issued)
    assert got == want, f"{got} elements of rows go into all-to-alls, expected {want}: {got / want:.4g} times"
    elsewhere = {found.groups[each.group] for each in issued} - {lane.ep}
    assert not elsewhere, f"rows go over {list(min(elsewhere))}, experts lie on {list(lane.ep)}"
    assert bytes_of(*issued) <= 2 * want, f"rows go in {issued[0].dtypes[0]}"
    counts = [each for each in sorts.get("counts", []) if found.groups[each.group] == lane.ep]
    assert len(counts) <= layers, f"{len(counts)} exchanges of counts for {layers} layers of experts"
    assert bytes_of(*counts) <= layers * 16 * 8 * len(lane.ep), f"{bytes_of(*counts)} bytes of counts"


def _received(found: Rehearsal, recipe: Recipe, lane: Lane, place: int, routing: Routing) -> None:
    """Check that the first exchange receives what the routing sends to this rank."""
    rows, ranks = _rows_of_a_rank(recipe, lane), len(lane.ep)
    first = sorted_by_purpose(found, recipe, lane)["rows"][0]
    everywhere = (rows // ranks,) * ranks
    to_first = tuple(rows if other == 0 else 0 for other in range(ranks))
    sent = everywhere if routing == "balanced" else to_first
    taken = everywhere if routing == "balanced" else ((rows,) * ranks if place == 0 else (0,) * ranks)
    assert first.sent == sent, f"rank {place} of EP sends {list(first.sent)} rows, expected {list(sent)}"
    assert first.received == taken, f"rank {place} of EP takes {list(first.received)} rows, expected {list(taken)}"


def _rows_of_a_rank(recipe: Recipe, lane: Lane) -> int:
    """Tokens of a rank, times four experts each. Ranks that route the same tokens each send a part of them."""
    sharing = len(lane.ep) if lane.execution.layout == "own-axis" else 1
    return 4 * recipe.seq_length * lane.execution.microbatches // (len(lane.tp) * sharing)


def _rest(found: Rehearsal, recipe: Recipe, lane: Lane) -> None:
    sorts = sorted_by_purpose(found, recipe, lane)
    got = bytes_of(*sorts.get("rest", []))
    words = f"{got} bytes are neither weights, gradients, residual stream nor expert rows, at most {LITTLE}"
    assert got <= LITTLE, words
    shared = sum(elements(each) for each in sorts.get("shared rows", []))
    tokens, layers, D = recipe.seq_length * lane.execution.microbatches, letters(recipe).count("E"), recipe.hidden
    own_axis = lane.execution.layout == "own-axis" and len(lane.ep) > 1
    # EP ranks gather what they computed of one batch, and the gradient of their input, gates included
    limit = layers * 2 * (D + 4) * tokens // (len(lane.tp) * len(lane.ep)) if own_axis else 0
    assert shared <= limit, f"{shared} elements are gathered between ranks of EP, at most {limit}"
