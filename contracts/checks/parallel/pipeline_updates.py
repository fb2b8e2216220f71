"""Updates under pipeline parallel: the norm, weights and moments, biases, and tensors with a copy on two stages."""

from __future__ import annotations

from dataclasses import replace

from contracts.checks._support.pipeline_run import (
    AHEAD,
    BESIDE_DP,
    BESIDE_TP,
    BIASED,
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    TIED,
    TIED_AHEAD_QUARTERS,
    Flow,
    both,
    flow,
    given,
    unlike,
)
from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution, Training

EMBEDDING = "embedding.weight"
MOVED: dict[str, Flow] = {
    "two-stages": flow(HALVES, IN_TWO),
    "four-stages-tied-and-ahead": flow(TIED_AHEAD_QUARTERS, IN_FOUR),
    "beside-dp": flow(HALVES, BESIDE_DP),
    "beside-shards": flow(TIED, replace(BESIDE_DP, fsdp=True)),
    "selection-bias": flow(BIASED, IN_TWO),
    "selection-bias-interleaved": flow(replace(BIASED, pattern="A|E|MR|E"), INTERLEAVED),
    "muon": flow(replace(HALVES, optim=replace(HALVES.optim, rule="muon")), IN_TWO),
    "a-stage-without-experts": flow(replace(BIASED, pattern="A|ME|R|E"), IN_FOUR),
}  # fmt: skip


@contract("PAR-08b", asks=("built", "train"), cases=MOVED, source="F03; F02; F18", tier="dist")
def stages_move_as_one_rank_does(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under pipeline parallel, the gradient norm counts each parameter of all stages once, and weights, moments and
    selection biases after two steps equal those of one rank.

    Gradients are right with each of these bugs: a stage clips by its own norm, a tensor on two stages counts twice, a
    bias moves at every microbatch.
    """
    one, many = both(stack, recipe, execution, given(2), "weights", "optimizer", "buffers")
    for want, got in zip(one.steps, many.steps, strict=True):
        off = abs(got.grad_norm - want.grad_norm)
        assert off <= 1e-10 * want.grad_norm, (
            f"the norm is {got.grad_norm:.10g} on rank {here().rank}, on one rank {want.grad_norm:.10g}"
        )
        words = (
            unlike(got, want, "the weight", got.weights, want.weights)
            or unlike(got, want, "the state", got.optimizer, want.optimizer)
            or unlike(got, want, "the buffer", got.buffers, want.buffers)
            or unlike(got, want, "the counter", got.seen, want.seen)
        )
        assert not words, words


COPIES: dict[str, Flow] = {
    "tied": flow(TIED, IN_TWO),
    "shared-with-prediction-heads": flow(AHEAD, IN_TWO),
    "both-over-four-stages": flow(TIED_AHEAD_QUARTERS, IN_FOUR),
    "interleaved": flow(TIED_AHEAD_QUARTERS, INTERLEAVED),
    "sharded": flow(TIED, replace(BESIDE_DP, fsdp=True)),
    "beside-tp-sp": flow(replace(AHEAD, untied_embeddings=False), BESIDE_TP),
}


@contract("PAR-11", asks=("built", "train"), cases=COPIES, source="F02", tier="dist")
def copies_on_two_stages_stay_the_same(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """A tensor with copies on two stages (tied embeddings, or an embedding that prediction heads read) stays
    bit-identical on all ranks after each of three steps, moments included, and equals that of one rank.

    Each copy receives a part of the gradient. If the parts are not summed, the copies drift apart while the loss falls.
    """
    one, many = both(stack, recipe, execution, given(3), "weights", "optimizer")
    names = [EMBEDDING, f"{EMBEDDING}/exp_avg", f"{EMBEDDING}/exp_avg_sq"]
    every = gathered([[{**step.weights, **step.optimizer}[name].fingerprint for name in names] for step in many.steps])
    for index, (want, got) in enumerate(zip(one.steps, many.steps, strict=True)):
        for at, name in enumerate(names):
            others = [rank for rank, its in enumerate(every) if its[index][at] != every[0][index][at]]
            assert not others, f"{name} is not the same on ranks 0 and {others} after step {got.number}"
        words = unlike(
            got, want, "the weight", {EMBEDDING: got.weights[EMBEDDING]}, {EMBEDDING: want.weights[EMBEDDING]}
        )
        assert not words, words
