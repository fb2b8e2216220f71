"""DSA: an indexer chooses k keys for each query, and the query attends only to those."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.attention_calls import (
    PACKED,
    ROWS,
    TOLERANCES,
    Lengths,
    call_of,
    oracle_difference,
    sparse_recipe,
)
from contracts.law._support.late import Tensor, torch
from contracts.spec import EXACT, BlockRun, Blocks, Element

_ASKS = ("block_weights", "run_block")


def _selected(run: BlockRun) -> Tensor:
    assert "selected" in run.seen, "a sparse block does not report which keys it selected"
    chosen: Tensor = numerics.tensor(run.seen["selected"])
    return chosen


COUNTS: dict[str, tuple[int, Lengths, tuple[tuple[int, ...], ...]]] = {  # k, documents, keys of each query, by hand
    "one-document": (5, ROWS, ((1, 2, 3, 4, 5, 5, 5, 5, 5),) * 2),
    "packed": (3, PACKED, ((1, 2, 3, 3, 3, 1, 1, 2, 3, 3), (1, 2, 1, 2, 3, 3, 3, 3, 3, 3))),
    "one-key": (1, PACKED, ((1,) * 10,) * 2),
    "more-than-there-are": (256, PACKED, ((1, 2, 3, 4, 5, 1, 1, 2, 3, 4), (1, 2, 1, 2, 3, 4, 5, 6, 7, 8))),
}  # fmt: skip


@contract("BLK-06a", asks=_ASKS, cases=COUNTS, source="naming bringup")
def a_query_selects_k_of_the_keys_it_may_see(
    stack: Blocks, top_k: int, lengths: Lengths, counts: tuple[tuple[int, ...], ...]
) -> None:
    """In sparse attention a query selects k of the keys that it may see, or all of them if there are fewer, and never a
    later key or a key of another document.

    Choosing among all keys and masking afterwards selects too few, because forbidden keys take the slots of allowed
    ones.
    """
    chosen_BTS = _selected(stack.run_block(call_of(stack, sparse_recipe(top_k), lengths, backward=False)))
    documents = fixtures.documents(lengths).tolist()
    for row, numbers in enumerate(documents):
        for t, count in enumerate(counts[row]):
            keys = [s for s in range(len(numbers)) if bool(chosen_BTS[row, t, s])]
            late = [s for s in keys if s > t]
            assert not late, f"query {t} of row {row} selects {late}, which follow it"
            foreign = [s for s in keys if numbers[s] != numbers[t]]
            assert not foreign, f"query {t} of row {row} selects {foreign}, which are of another document"
            assert len(keys) == count, (
                f"query {t} of row {row} selects {len(keys)} keys, expected {count} (k is {top_k})"
            )


CHOSEN: dict[str, tuple[int, Lengths] | tuple[int, Lengths, float]] = {
    "one-document": (5, ROWS),
    "packed": (5, PACKED),
    "packed-3": (3, PACKED),
    "thirteen-tokens": (5, ((13,), (13,))),
    "wide-eps": (5, ((13,), (13,)), 2.0),
}
_MARGIN = 1e-3  # between the last key chosen and the first left out; rounding is 1e-15


@contract("BLK-06b", asks=_ASKS, cases=CHOSEN, source="naming")
def the_keys_with_the_highest_index_scores_are_selected(
    stack: Blocks, top_k: int, lengths: Lengths, eps: float = 1e-5
) -> None:
    """A query selects the keys with its k highest index scores: sums over index heads of w · relu(q · k), with rope.

    The indexer computes its own scores. They are not the attention scores, and all heads share one choice.
    """
    oracle = oracles.attention
    call = call_of(stack, replace(sparse_recipe(top_k), norm_eps=eps), lengths, backward=False)
    chosen_BTS = _selected(stack.run_block(call))
    weights, x_BTD = numerics.tensors(call.weights), numerics.tensor(call.x)
    documents_BT = fixtures.documents(lengths)
    for row in range(len(lengths)):
        scores_TS = oracle.index_scores(call.recipe, weights, x_BTD[row], documents_BT[row])
        margin = oracle.margin(scores_TS, top_k)
        assert margin > _MARGIN, f"the case is undecided: scores {margin:.1e} apart"
        want_TS = oracle.selection(scores_TS, top_k)
        for t, (got, want) in enumerate(zip(chosen_BTS[row].tolist(), want_TS.tolist(), strict=True)):
            one, other = ([s for s, chosen in enumerate(keys) if chosen] for keys in (got, want))
            assert one == other, f"query {t} of row {row} selects {one}, the highest {top_k} scores are of {other}"


SPARSE: dict[str, tuple[int, Lengths, Element]] = {
    "one-document": (5, ROWS, "float64"),
    "packed": (3, PACKED, "float64"),
    "one-key": (1, PACKED, "float64"),
    "float32": (5, PACKED, "float32"),
}


@contract("BLK-06d", asks=_ASKS, cases=SPARSE, source="naming")
def sparse_attention_is_attention_over_what_is_selected(
    stack: Blocks, top_k: int, lengths: Lengths, dtype: Element
) -> None:
    """A sparse block has the outputs and every gradient of MLA over its selected keys, and no gradient passes through
    the selection.

    The indexer has its own training loss, which is no part of <y, dy>. So <y, dy> gives no gradient to the indexer's
    weights, nor to the inputs through its scores.
    """
    call = call_of(stack, sparse_recipe(top_k), lengths, dtype=dtype)
    run = stack.run_block(call)
    _selected(run)
    words = oracle_difference(call, run, TOLERANCES[dtype])
    assert not words, words


LEFT_OUT: dict[str, tuple[int, Lengths, int]] = {  # k, documents, the token that changes
    "early": (3, ROWS, 1),
    "late": (3, ROWS, 4),
    "packed": (3, PACKED, 3),
}


@contract("BLK-06e", asks=_ASKS, cases=LEFT_OUT, source="naming")
def a_key_that_is_not_selected_counts_for_nothing(stack: Blocks, top_k: int, lengths: Lengths, s: int) -> None:
    """Changing token s leaves a query's output exactly as it was, if the query selects the same keys as before and s is
    not among them.

    The gradient of such a query with respect to token s is exactly zero.
    """
    call = call_of(stack, sparse_recipe(top_k), lengths)
    other_BTD = numerics.tensor(call.x)
    other_BTD[:, s] += fixtures.normal("a little", tuple(other_BTD[:, s].shape), scale=0.1)
    one, two = stack.run_block(call), stack.run_block(replace(call, x=numerics.array(other_BTD), dy=None))
    before_BTS, after_BTS = _selected(one), _selected(two)
    without_BT = (before_BTS == after_BTS).all(-1) & ~before_BTS[..., s]
    without_BT[:, : s + 1] = False  # earlier queries never see s
    assert bool(without_BT.any()), f"no query after token {s} leaves it out with k {top_k}"
    words = numerics.difference("y of the queries that leave it out", numerics.tensor(two.y)[without_BT],
                           numerics.tensor(one.y)[without_BT], EXACT)  # fmt: skip
    assert not words, f"token {s} was replaced, and {words}"
    with_BT = before_BTS[..., s] & after_BTS[..., s]
    changed = (numerics.tensor(one.y) != numerics.tensor(two.y)).any(-1)
    assert bool((changed & with_BT)[:, s + 1 :].any()), f"token {s} was replaced, and no query that selects it changed"

    dy_BTD = torch.where(without_BT[..., None], numerics.tensor(call.dy), 0.0) if call.dy else other_BTD
    back = numerics.tensor(stack.run_block(replace(call, dy=numerics.array(dy_BTD))).gradients["x"])[:, s]
    words = numerics.difference("the gradient with respect to the token left out", back, torch.zeros_like(back), EXACT)
    assert not words, f"queries that leave out token {s}: {words}"


WHERE = {  # sparse A-ranks, layer, whether it is sparse; A stands at layers 0, 4, 8, 12
    "rank-0": ((0, 2), 0, True),
    "rank-1-between": ((0, 2), 4, False),
    "rank-2": ((0, 2), 8, True),
    "rank-3": ((3,), 12, True),
    "rank-1-is-not-layer-1": ((1, 3), 0, False),
    "rank-1-is-layer-4": ((1, 3), 4, True),
}


@contract("BLK-06f", asks=_ASKS, cases=WHERE, source="naming bringup")
def sparse_layers_stand_where_ranks_say(stack: Blocks, a_ranks: tuple[int, ...], layer: int, sparse: bool) -> None:
    """The sparse attention layers are those whose A-rank the recipe lists, where A-ranks count attention layers from 0;
    all other attention layers are dense.
    """
    run = stack.run_block(call_of(stack, sparse_recipe(3, a_ranks), ROWS, layer=layer, backward=False))
    found = "selected" in run.seen
    words = "selects keys" if found else "does not select keys"
    assert found == sparse, f"layer {layer} {words}, and the sparse A-ranks are {a_ranks}"
