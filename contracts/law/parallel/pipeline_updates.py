"""Updates under pipeline parallel: the norm, weights and moments, biases, and tensors with a copy on two stages."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.law._support.fp8_calls import FP8, with_scaling
from contracts.law._support.pipeline_run import (
    AHEAD,
    BESIDE_DP,
    BESIDE_EP,
    BESIDE_TP,
    BIASED,
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    TIED,
    TIED_AHEAD_QUARTERS,
    Cell,
    batches,
    cell,
    one_rank_and_many,
)
from contracts.law._support.step_comparison import clip_difference, named_like, state_differences, tensor_differences
from contracts.spec import Execution, Recipe, Training

EMBEDDING = "embedding.weight"
IN_EIGHT_BITS = replace(
    with_scaling(FP8, "delayed"), name="staged-fp8", pattern="A|E|M|E", depth=4, seq_length=16, vocab=HALVES.vocab,
    batch=HALVES.batch, optim=HALVES.optim,
)  # fmt: skip
MOVED: dict[str, Cell] = {
    "two-stages": cell(HALVES, IN_TWO),
    "four-stages-tied-and-ahead": cell(TIED_AHEAD_QUARTERS, IN_FOUR),
    "beside-dp": cell(HALVES, BESIDE_DP),
    "beside-shards": cell(TIED, replace(BESIDE_DP, fsdp=True)),
    "selection-bias": cell(BIASED, IN_TWO),
    "selection-bias-interleaved": cell(replace(BIASED, pattern="A|E|MR|E"), INTERLEAVED),
    "fp8-interleaved": cell(IN_EIGHT_BITS, INTERLEAVED),
    "muon": cell(replace(HALVES, optim=replace(HALVES.optim, rule="muon")), IN_TWO),
    "muon-shared": cell(replace(AHEAD, untied_embeddings=False, optim=replace(AHEAD.optim, rule="muon")), IN_TWO),
    "a-stage-without-experts": cell(replace(BIASED, pattern="A|ME|R|E"), IN_FOUR),
    "ep-beside-a-stage-without-experts": cell(replace(BIASED, pattern="A|ME", depth=3), BESIDE_EP),
}  # fmt: skip


@contract("PAR-08b", asks=("built", "train"), cases=MOVED, source="F03; F02; F18", tier="dist")
def stages_move_as_one_rank_does(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under pipeline parallel, the gradient norm counts each parameter of all stages once, and weights, moments and
    selection biases after two steps equal those of one rank.

    Gradients are right with each of these bugs: a stage clips by its own norm, a tensor on two stages counts twice, a
    bias moves at every microbatch, the delayed scales of a rank's second stage never advance.
    """
    for one, many in one_rank_and_many(stack, recipe, execution, batches(2), "weights", "optimizer", "buffers"):
        words = clip_difference(one, many, "grad_norm", bound=1e-10)
        words = words or state_differences(one, many, "weights", "optimizer", "buffers", "seen")
        assert not words, words


COPIES: dict[str, Cell] = {
    "tied": cell(TIED, IN_TWO),
    "shared-with-prediction-heads": cell(AHEAD, IN_TWO),
    "both-over-four-stages": cell(TIED_AHEAD_QUARTERS, IN_FOUR),
    "interleaved": cell(TIED_AHEAD_QUARTERS, INTERLEAVED),
    "sharded": cell(TIED, replace(BESIDE_DP, fsdp=True)),
    "beside-tp-sp": cell(replace(AHEAD, untied_embeddings=False), BESIDE_TP),
}


@contract("PAR-11", asks=("built", "train"), cases=COPIES, source="F02", tier="dist")
def copies_on_two_stages_stay_the_same(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """A tensor with copies on two pipeline stages (tied embeddings, or an embedding that prediction heads read) stays
    bit-identical on all ranks after each of three steps, moments included, and equals that of one rank.

    Each copy receives a part of the gradient. If the parts are not summed, the copies drift apart while the loss falls.
    """
    steps = one_rank_and_many(stack, recipe, execution, batches(3), "weights", "optimizer")
    names = [EMBEDDING, f"{EMBEDDING}/exp_avg", f"{EMBEDDING}/exp_avg_sq"]
    every = gathered([[{**many.weights, **many.optimizer}[name].fingerprint for name in names] for _, many in steps])
    for index, (one, many) in enumerate(steps):
        for at, name in enumerate(names):
            others = [rank for rank, its in enumerate(every) if its[index][at] != every[0][index][at]]
            assert not others, f"{name} is not the same on ranks 0 and {others} after step {many.number}"
        got, want = (named_like(step.weights, EMBEDDING) for step in (many, one))
        words = tensor_differences(one, many, "the weight", got, want)
        assert not words, words
