"""A step under context parallel equals the step on one rank.

The oracle is the same stack on one rank, in float64, tensor by tensor. One invariant needs no second run: tokens of
other documents get no gradient. Documents end at the borders between ranks, one token before them and one token after
them; one document spans all ranks, and one rank holds only the end of one document and the start of the next. In the
cells with four ranks a rank has two tokens, fewer than the convolution looks back.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.instruments.ranks import here
from contracts.law._support.context_parallel import HALVES, QUARTERS, THIRDS
from contracts.law._support.late import torch
from contracts.law._support.layouts import in_a_layout_of, numbers_in
from contracts.law._support.multi_rank_run import BIASED, SPREAD, borrowed, one_rank_and_many, with_rungs
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.step_comparison import (
    clip_difference,
    gradient_differences,
    label_difference,
    loss_difference,
    on_one_rank,
    replica_differences,
    state_differences,
)
from contracts.law._support.training_run import ROWS_OF_16, Rows, batch, batches, drawn_weights
from contracts.spec import (
    Dsa,
    Execution,
    Mhc,
    Mode,
    Moe,
    Mtp,
    Observed,
    ParallelSsm,
    Recipe,
    Refused,
    Session,
    Step,
    Tokens,
    Training,
)

LATENT = replace(SPREAD, name="context-mla", mla=SMALL_MLA.mla)


SPARSE = replace(LATENT, name="context-dsa", dsa=Dsa(a_ranks=(0,), index_heads=5, index_head_dim=8, top_k=5))


WIDE = replace(SPARSE, name="context-dsa-wide", dsa=Dsa(a_ranks=(0,), index_heads=5, index_head_dim=8, top_k=11))
"""A query chooses more keys than a rank of two has tokens of a row."""


AHEAD = replace(SPREAD, name="context-mtp", norm_eps=1e-2, mtp=Mtp(depth=2, loss_weight=0.4))


TIED = replace(AHEAD, name="context-tied", untied_embeddings=False)


STREAMS = replace(SPREAD, name="context-mhc", mhc=Mhc(streams=3))


PARALLEL = replace(
    SPREAD, name="context-side-by-side", pattern="AE", depth=3,
    parallel_ssm=ParallelSsm(attention_scale=0.75, ssm_scale=1.5),
)  # fmt: skip
CAPPED = replace(SPREAD, name="context-capped", moe=replace(SPREAD.moe or Moe(), capacity_factor=0.7))
GROUPED = replace(
    SPREAD, name="context-groups", moe=replace(SPREAD.moe or Moe(), top_k=4, score="sigmoid", groups=(4, 2))
)
RANKED = replace(CAPPED, moe=replace(CAPPED.moe or Moe(), drop_policy="probs"))


MUON = replace(SPREAD, name="context-muon", optim=replace(SPREAD.optim, rule="muon"))


STAGED = replace(AHEAD, name="context-staged", pattern="AEMR", depth=4)


LONG: Rows = (((160,), 150), ((90, 70), 80), ((75, 5, 80), 70), ((81, 79), 0))
"""Rows of 160 tokens, cut at 80: more than a scan takes at once in the stacks that are known (16 to 64)."""


Cell = tuple[Recipe, Mode, Execution, Rows, int]


def cell(recipe: Recipe, execution: Execution, mode: Mode = "nemo_native", rows: Rows = HALVES) -> Cell:
    return recipe, mode, execution, rows, execution.world


CELLS: dict[str, Cell] = {
    "cp2": cell(SPREAD, borrowed(2, cp=2)),
    "cp2-custom-mixers": cell(SPREAD, borrowed(2, cp=2), "author_dp"),
    "cp2-latent": cell(LATENT, borrowed(2, cp=2)),
    "cp2-sparse": cell(SPARSE, borrowed(2, cp=2), "author_dp"),
    "cp2-sparse-more-keys": cell(WIDE, borrowed(2, cp=2)),
    "cp2-prediction": cell(AHEAD, borrowed(2, cp=2)),
    "cp2-streams": cell(STREAMS, borrowed(2, cp=2)),
    "cp2-side-by-side": cell(PARALLEL, borrowed(2, cp=2)),
    "cp2-capacity": cell(CAPPED, borrowed(2, cp=2)),
    "cp2-capacity-by-gate": cell(RANKED, borrowed(2, cp=2)),
    "cp2-capacity-ep2": cell(CAPPED, borrowed(2, cp=2, ep=2)),
    "cp2-tp2-sp-etp1-capacity": cell(CAPPED, borrowed(4, tp=2, cp=2, etp=1, sp=True)),
    "cp2-groups": cell(GROUPED, borrowed(2, cp=2)),
    "cp2-ep2": cell(BIASED, borrowed(2, cp=2, ep=2)),
    "cp2-recomputed": cell(AHEAD, replace(borrowed(2, cp=2), recompute=True, microbatches=2)),
    "cp2-fsdp": cell(TIED, borrowed(2, cp=2, fsdp=True)),
    "cp2-ep2-fsdp": cell(BIASED, borrowed(2, cp=2, ep=2, fsdp=True)),
    "cp3": cell(replace(SPREAD, seq_length=18), borrowed(3, cp=3), rows=THIRDS),
    "cp3-custom-mixers": cell(replace(SPREAD, seq_length=18), borrowed(3, cp=3), "author_dp", THIRDS),
    "cp2-long": cell(replace(SPREAD, seq_length=160), borrowed(2, cp=2), rows=LONG),
    "cp2-long-custom-mixers": cell(replace(SPREAD, seq_length=160), borrowed(2, cp=2), "author_dp", LONG),
    "cp4-short": cell(SPREAD, borrowed(4, cp=4), rows=QUARTERS),
    "cp4-short-custom-mixers": cell(SPREAD, borrowed(4, cp=4), "author_dp", QUARTERS),
    "cp2-dp2": cell(SPREAD, borrowed(4, cp=2)),
    "cp2-tp2-sp": cell(AHEAD, borrowed(4, cp=2, tp=2, sp=True)),
    "cp2-tp2-custom-mixers": cell(LATENT, borrowed(4, cp=2, tp=2), "author_dp"),
    "cp2-tp2-sp-ep4-etp1-fsdp": cell(BIASED, borrowed(4, cp=2, tp=2, ep=4, etp=1, sp=True, fsdp=True)),
    "cp2-dp2-fsdp": cell(BIASED, borrowed(4, cp=2, fsdp=True)),
    "cp2-hsdp": cell(BIASED, borrowed(4, cp=2, fsdp=True, replicas=2)),
    "cp2-pp2": cell(STAGED, replace(borrowed(4, cp=2, pp=2), microbatches=2)),
    "cp4-fsdp": cell(STREAMS, borrowed(4, cp=4, fsdp=True), rows=ROWS_OF_16),
}  # fmt: skip


def runs(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, rows: Rows, steps: int, *observe: Observed
) -> list[tuple[Step, Step]]:
    """For each step, the step on one rank and the step on all ranks, from drawn weights. `observe` applies to the last
    step.
    """
    given = batches(steps, "context", recipe.vocab, rows)
    weights = drawn_weights(stack.built(recipe, mode).parameters)
    return one_rank_and_many(
        stack, recipe, replace(execution, mode=mode), given, *observe, weights=weights, at=frozenset({steps})
    )


@contract("PAR-01g", asks=("built", "train"), cases=CELLS, source="F01; F06", tier="dist")
def a_row_that_is_cut_gives_the_gradients_of_one_rank(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, rows: Rows, world: int
) -> None:
    """Under context parallel, losses, counts and every gradient by name equal those of one rank.

    Every layer type needs tokens of other ranks: attention needs keys, a convolution the tokens before it, a scan the
    state. What a rank receives must be right for documents that end anywhere, and its gradient must flow back to the
    rank that holds the token.
    """
    ((alone, many),) = runs(stack, recipe, mode, execution, rows, 1, "gradients")
    words = label_difference(alone, many) or loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words


MOVED = {
    name: CELLS[name] for name in ("cp2", "cp2-ep2-fsdp", "cp2-dp2", "cp2-tp2-sp", "cp2-hsdp", "cp2-pp2")
} | {"cp2-muon-fsdp": cell(MUON, borrowed(2, cp=2, fsdp=True))}  # fmt: skip


@contract("PAR-02g", asks=("built", "train"), cases=MOVED, source="F02; PG-04", tier="dist")
def ranks_of_one_row_stay_replicas(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, rows: Rows, world: int
) -> None:
    """Under context parallel, weights, optimizer state and router biases after three steps equal those of one rank, and
    are bit-identical on every rank.

    Without data parallelism, context parallel is the only reason to reduce gradients. A stack that reduces only when
    there are several data-parallel ranks trains one separate model per context-parallel rank.
    """
    alone, many = runs(stack, recipe, mode, execution, rows, 3, "weights", "optimizer", "buffers")[-1]
    words = replica_differences({**many.weights, **many.optimizer, **many.buffers})
    assert not words, words
    words = state_differences(alone, many, "weights", "optimizer", "buffers")
    assert not words, words


CLIPPED = {name: CELLS[name] for name in ("cp2", "cp2-fsdp", "cp2-ep2", "cp2-tp2-sp", "cp2-hsdp")}


@contract("PAR-03g", asks=("built", "train"), cases=CLIPPED, source="F03", tier="dist")
def each_parameter_counts_once_in_the_norm_of_a_cut_row(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, rows: Rows, world: int
) -> None:
    """Under context parallel, the gradient norm and the clip coefficient equal those of one rank, whether
    context-parallel ranks hold copies of a parameter or shards of it.
    """
    clipped = replace(recipe, optim=replace(recipe.optim, clip=0.05))
    ((alone, many),) = runs(stack, clipped, mode, execution, rows, 1)
    words = clip_difference(alone, many)
    assert not words, words


DENSE = replace(SPREAD, name="context-dense", pattern="AMR", depth=3, moe=None)


ISOLATED: dict[str, tuple[Recipe, Mode, Execution, int]] = {
    "cp2": (DENSE, "nemo_native", borrowed(2, cp=2), 2),
    "cp2-custom-mixers": (DENSE, "author_dp", borrowed(2, cp=2), 2),
    "cp2-prediction": (replace(AHEAD, pattern="AMR", depth=3, moe=None), "nemo_native", borrowed(2, cp=2), 2),
    "cp4": (DENSE, "author_dp", borrowed(4, cp=4), 4),
}


@contract("PAR-01h", asks=("built", "train"), cases=ISOLATED, source="F06; ROP-28", tier="dist")
def a_cut_row_keeps_its_documents_apart(
    stack: Training, recipe: Recipe, mode: Mode, execution: Execution, world: int
) -> None:
    """Under context parallel, tokens of a document whose labels do not count get a gradient of exactly zero, wherever
    the neighbouring documents lie: before a border between ranks, after it, or across it.

    Every token of the batch is a different one, so each has its own row in the embedding's gradient. In a document
    whose labels count, every token but the last gets a gradient.
    """
    execution = in_a_layout_of(stack, execution)
    given, counted = _one_document_counts()
    weights = drawn_weights(stack.built(recipe, mode).parameters)
    execution = replace(execution, mode=mode, precision="float64")
    session = Session(
        recipe=recipe, steps=1, batches=(given,), weights=weights, execution=execution, observe=frozenset({"gradients"})
    )
    grad_VD = numerics.tensor(stack.train(session).steps[0].gradients["embedding.weight"])
    for token in range(64):
        reached = bool(grad_VD[token].abs().max() > 0)
        where = f"token {token % 16} of row {token // 16} (rank {here().rank})"
        assert reached or not counted[token], f"no gradient reaches {where}, whose document counts"
        assert not reached or counted[token] is not False, f"a gradient reaches {where}, whose document does not count"


def _one_document_counts() -> tuple[Tokens, list[bool | None]]:
    """64 different tokens in 4 rows, with labels in the last document of each row only; and which tokens get a
    gradient.

    None for a document's last token, which has no label.
    """
    lengths = ((8, 8), (7, 9), (9, 7), (1, 5, 10))
    documents_BT = fixtures.documents(lengths)
    tokens_BT = torch.arange(64).view(4, 16)
    last_BT = documents_BT == documents_BT[:, -1:]
    labels_BT = tokens_BT.roll(-1, 1).masked_fill(~last_BT, -100)
    labels_BT[:, -1] = -100
    reached: list[bool | None] = [bool(each) for each in last_BT.flatten()]
    for row in range(4):
        reached[16 * row + 15] = None
    array = numerics.array
    return Tokens(tokens=array(tokens_BT), labels=array(labels_BT), documents=array(documents_BT)), reached


BALANCED = ("experts", "balance-loss")
LENGTHS: dict[str, tuple[Recipe, Execution, int, int]] = {
    "cp2": (SPREAD, borrowed(2, cp=2), 15, 2),
    "cp2-fsdp": (SPREAD, borrowed(2, cp=2, fsdp=True), 13, 2),
    "cp4": (SPREAD, borrowed(4, cp=4), 14, 4),
}


@contract(
    "PAR-01i",
    asks=("built", "train"),
    cases=with_rungs(LENGTHS, *BALANCED),
    needs=BALANCED,
    sheds=("packed",),
    source="F05",
    tier="dist",
)
def no_token_is_lost_where_a_row_does_not_divide(
    stack: Training, recipe: Recipe, execution: Execution, length: int, world: int
) -> None:
    """A row whose length does not divide by the context-parallel degree is either refused, with the length and the
    degree named, or padded, with the result of one rank.

    If the leftover tokens at the end of each row are dropped, no loss curve shows it.
    """
    execution = in_a_layout_of(stack, execution)
    given = batch("context left over", SPREAD.vocab, (((length,), 0), ((5, length - 5), 0)), recipe=recipe)
    weights = drawn_weights(stack.built(recipe, "nemo_native").parameters)
    session = Session(recipe=recipe, steps=1, batches=(given,), weights=weights)
    alone, spread = (
        replace(session, execution=replace(each, precision="float64")) for each in (Execution(), execution)
    )
    many = _step_or_refusal(stack, spread)
    if isinstance(many, Refused):
        missing = sorted({length, execution.degrees.cp} - numbers_in(many))
        assert not missing, f"the refusal does not name {missing}: {many}"
        return
    (one,) = on_one_rank(stack, alone).steps
    words = label_difference(one, many) or loss_difference(one, many)
    assert not words, words


def _step_or_refusal(stack: Training, session: Session) -> Step | Refused:
    try:
        return stack.train(session).steps[0]
    except Refused as refused:
        return refused
