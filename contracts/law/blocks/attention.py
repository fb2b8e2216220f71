"""Attention against its definition: heads, softmax, and the tensors that a block holds."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.attention_calls import (
    BARE,
    MHA,
    MQA,
    PACKED,
    ROWS,
    TOLERANCES,
    Lengths,
    call_of,
    oracle_difference,
    with_weights,
)
from contracts.law._support.recipes import SMALL, SMALL_DSA, SMALL_MLA
from contracts.spec import FLOAT64, Blocks, Dsa, Element, Recipe

_ASKS = ("block_weights", "run_block")

GROUPED: dict[str, tuple[Recipe, Lengths, Element]] = {
    "4-heads-on-2": (SMALL, ROWS, "float64"),
    "4-heads-on-1": (MQA, ROWS, "float64"),
    "4-heads-on-4": (MHA, ROWS, "float64"),
    "8-heads-on-2": (replace(SMALL, hidden=48, heads=8), ((6,), (6,)), "float64"),
    "packed": (SMALL, PACKED, "float64"),
    "packed-4-heads-on-1": (MQA, PACKED, "float64"),
    "without-qk-norm": (BARE, ROWS, "float64"),
    "biased": (replace(BARE, biases=("attention",)), PACKED, "float64"),
    "biased-with-qk-norm": (replace(SMALL, biases=("attention",)), ROWS, "float64"),
    "theta-100": (replace(SMALL, rope_theta=100), ROWS, "float64"),
    "wide-eps": (replace(SMALL, norm_eps=0.1), PACKED, "float64"),
    "one-token": (SMALL, ((1,), (1,)), "float64"),
    "float32": (SMALL, ROWS, "float32"),
    "float32-packed": (SMALL, PACKED, "float32"),
}


@contract("BLK-03a", asks=_ASKS, cases=GROUPED, source="naming hub")
def grouped_query_attention_is_its_definition(stack: Blocks, recipe: Recipe, lengths: Lengths, dtype: Element) -> None:
    """Grouped-query attention has the outputs and every gradient of its definition, a loop over heads and tokens.

    The definition includes scale, QK norm, rope and the choice of the KV head. Contracts below test each by itself.
    """
    call = call_of(stack, recipe, lengths, dtype=dtype)
    words = oracle_difference(call, stack.run_block(call), TOLERANCES[dtype])
    assert not words, words


REPEATED = {  # KV groups, documents, the KV head that each of four query heads reads
    "on-2": (2, ROWS, (0, 0, 1, 1)),
    "on-1": (1, ROWS, (0, 0, 0, 0)),
    "on-2-packed": (2, PACKED, (0, 0, 1, 1)),
}


@contract("BLK-03c", asks=_ASKS, cases=REPEATED, source="naming hub")
def grouped_heads_are_heads_with_repeated_keys_and_values(
    stack: Blocks, groups: int, lengths: Lengths, reads: tuple[int, ...]
) -> None:
    """GQA equals multi-head attention in which neighbouring query heads share one key and one value, and the gradient
    of a KV head is the sum over the query heads that read it.
    """
    head_dim = SMALL.head_dim
    call = call_of(stack, replace(SMALL, kv_groups=groups), lengths)
    names = ("mixer.wk.weight", "mixer.wv.weight")
    rows = [group * head_dim + element for group in reads for element in range(head_dim)]
    repeated = {name: numerics.array(numerics.tensor(call.weights[name])[rows]) for name in names}
    few = stack.run_block(call)
    many = stack.run_block(replace(call, recipe=MHA, weights=with_weights(call, repeated)))
    words = numerics.difference("y", few.y, many.y, FLOAT64)
    assert not words, f"{groups} KV heads against four that repeat them: {words}"
    for name in names:
        each = numerics.tensor(many.gradients[name]).reshape(4, head_dim, -1)
        want = [each[[head for head in range(4) if reads[head] == group]].sum(0) for group in range(groups)]
        got = numerics.tensor(few.gradients[name]).reshape(groups, head_dim, -1)
        for group in range(groups):
            what, scale = f"the gradient of {name}, KV head {group},", numerics.typical_size(each)
            words = numerics.difference(what, got[group], want[group], FLOAT64, scale=scale)
            assert not words, f"against the sum over the heads that read it: {words}"


EQUAL = {"gqa": (SMALL, ROWS), "gqa-packed": (SMALL, PACKED), "mla": (SMALL_MLA, ROWS), "dsa": (SMALL_DSA, PACKED)}


@contract("BLK-03e", asks=_ASKS, cases=EQUAL, source="naming")
def equal_tokens_have_equal_outputs(stack: Blocks, recipe: Recipe, lengths: Lengths) -> None:
    """If all tokens of a row are equal, all outputs of attention are equal: attention weights sum to one, and values
    carry no position.

    Rope applied to values, dropout left on, and a mask multiplied in after the softmax violate this.
    """
    call = call_of(stack, recipe, lengths, backward=False)
    x_BTD = numerics.tensor(call.x)[:, :1].expand(call.x.shape)
    y_BTD = numerics.tensor(stack.run_block(replace(call, x=numerics.array(x_BTD))).y)
    words = numerics.difference("y", y_BTD, y_BTD[:, :1].expand(y_BTD.shape), FLOAT64)
    assert not words, f"all tokens of a row are equal, and against the first of the row {words}"


_GQA = {"norm.weight": (24,), "mixer.wq.weight": (24, 24), "mixer.wk.weight": (12, 24), "mixer.wv.weight": (12, 24),
        "mixer.wo.weight": (24, 24)}  # fmt: skip
_MLA = {"norm.weight": (24,), "mixer.wq_a.weight": (12, 24), "mixer.q_norm.weight": (12,),
        "mixer.wq_b.weight": (40, 12), "mixer.wkv_a.weight": (14, 24), "mixer.kv_norm.weight": (10,),
        "mixer.wkv_b.weight": (56, 10), "mixer.wo.weight": (24, 32)}  # fmt: skip
_INDEXER = {"mixer.indexer.wq.weight": (40, 12), "mixer.indexer.wk.weight": (8, 24),
            "mixer.indexer.k_norm.weight": (8,), "mixer.indexer.k_norm.bias": (8,),
            "mixer.indexer.weights.weight": (5, 24)}  # fmt: skip
HELD = {  # recipe, layer, name → shape
    "gqa": (SMALL, 0, {**_GQA, "mixer.q_norm.weight": (6,), "mixer.k_norm.weight": (6,)}),
    "without-qk-norm": (BARE, 0, _GQA),
    "biased": (replace(BARE, biases=("attention",)), 0, {**_GQA, "mixer.wq.bias": (24,), "mixer.wk.bias": (12,),
                                                         "mixer.wv.bias": (12,), "mixer.wo.bias": (24,)}),
    "mla": (SMALL_MLA, 0, _MLA),
    "dsa": (SMALL_DSA, 8, {**_MLA, **_INDEXER}),
    "dsa-dense-layer": (SMALL_DSA, 4, _MLA),
    # The A layers are 0, 4, 8 and 12. Read as the number of a layer, rank 3 would be an E.
    "dsa-on-the-last": (replace(SMALL_DSA, dsa=Dsa(a_ranks=(3,), index_heads=5, index_head_dim=8)), 12,
                        {**_MLA, **_INDEXER}),
}  # fmt: skip


@contract("BLK-03f", asks="block_weights", cases=HELD, source="naming hub")
def attention_holds_its_matrices_and_nothing_else(
    stack: Blocks, recipe: Recipe, layer: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    """An attention block holds exactly the tensors of its definition, and only sparse A-ranks hold an indexer.

    A rope table saved as a buffer would be loaded back after theta or the sequence length has changed.
    """
    held = {name: shape.shape for name, shape in stack.block_weights(recipe, layer, "nemo_native").items()}
    missing, extra = sorted(shapes.keys() - held.keys()), sorted(held.keys() - shapes.keys())
    assert not missing, f"layer {layer} lacks {', '.join(missing)}"
    assert not extra, f"layer {layer} holds {', '.join(extra)}, which its definition does not have"
    for name, shape in shapes.items():
        assert held[name] == shape, f"{name} has shape {held[name]}, expected {shape}"
