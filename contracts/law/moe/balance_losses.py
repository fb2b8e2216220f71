"""Balance losses: the auxiliary losses that spread tokens over experts."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import PLAIN_SIGMOID, SIGMOID, SOFTMAX, Activation
from contracts.law._support.late import torch
from contracts.spec import EXACT, FLOAT64, Blocks, Element, Moe, NotOffered, chosen, within

OVER = ("balance-over",)
PAPERS = "arXiv 2412.19437, eq. 17-20; arXiv 2202.08906, eq. 5"
LN3, LN5 = log(3), log(5)
TWO = replace(SOFTMAX, top_k=2, shared_hidden=0)
ONE = replace(SOFTMAX, top_k=1, shared_hidden=0)
TWO_SIGMOIDS = replace(SIGMOID, top_k=2, shared_hidden=0)
IN_A_GROUP = replace(TWO_SIGMOIDS, groups=(4, 1))
ONE_SIGMOID = replace(TWO_SIGMOIDS, top_k=1)


def _around(k: int, high: float, low: float = 0.0) -> list[list[float]]:
    """Twelve tokens; token n has `high` on the k experts from n on, so each expert gets k assignments."""
    return [[high if (expert - n) % 12 < k else low for expert in range(12)] for n in range(12)]


def _onto(experts: Sequence[int], high: float, low: float = 0.0) -> list[list[float]]:
    """Twelve tokens that all have `high` on the same experts."""
    return [[high if expert in experts else low for expert in range(12)] for _ in range(12)]


def _raised(experts: Sequence[int], by: float) -> list[float]:
    """A selection bias that is 0 for all other experts."""
    return [by if expert in experts else 0.0 for expert in range(12)]


_FULL = replace(TWO, capacity_factor=0.5)

# moe, rows of logits, selection bias, aux. By hand, E · sum of f · P:
# balanced: f = P = 1/12, so 1 for any k. Two of twelve at ln 5, ten at 0: P = 5/20 each of the two, f = 1/2, so
# 12 · (1/2 · 1/4 · 2) = 3. Sigmoids of ln 3 and -ln 3 are 3/4 and 1/4: P = 0.75 / 4 = 3/16, so 12 · 3/16 = 9/4.
# One of twelve at ln 5: P = 5/16, f = 1, so 15/4. One sigmoid of 3/4 beside eleven of 1/4: P = 3/14, so 18/7.
# Over all sequences at once (the last number, where it is another): in six that share out twelve experts the load is
# even; of three, four experts have 14/72 of the assignments and P = 23/180, eight have 2/72 and 11/180, so 61/45.
AUX: dict[str, tuple[Any, ...]] = {
    "balanced-k-1": (ONE, [_around(1, LN5)], None, 1.0),
    "balanced-k-2": (TWO, [_around(2, LN5)] * 2, None, 1.0),
    "balanced-k-3": (SOFTMAX, [_around(3, LN5)], None, 1.0),
    "balanced-sigmoids": (SIGMOID, [_around(3, LN3)], None, 1.0),
    "collapsed-k-2": (TWO, [_onto((3, 11), LN5)], None, 3.0),
    "collapsed-k-1": (ONE, [_onto((11,), LN5)], None, 15 / 4),
    "collapsed-sigmoids": (TWO_SIGMOIDS, [_onto((0, 7), LN3, -LN3)], None, 9 / 4),
    "collapsed-sigmoids-k-1": (ONE_SIGMOID, [_onto((5,), LN3, -LN3)], None, 18 / 7),
    "groups": (IN_A_GROUP, [_onto((0, 2), LN3, -LN3)], None, 9 / 4),  # P is over the experts of all groups
    # Sigmoids of 4/5, 1/2 and 3/5 beside nine of 1/5 add up to 3.7. Experts 0 to 2 are the chosen group, so f is 1/2 of
    # experts 0 and 1. Counted by score alone, f is that of experts 0 and 7.
    "groups-in-f": (
        IN_A_GROUP, [[[log(4), 0.0, *[-log(4)] * 5, log(1.5), *[-log(4)] * 4]] * 12], None, (7.8 / 3.7, 8.4 / 3.7)
    ),
    # f and P are per sequence: over all six sequences together the load is even, and the loss would be 1.
    "sequences-apart": (TWO, [_onto((2 * n, 2 * n + 1), LN5)[:4] for n in range(6)], None, 3.0, 1.0),
    "one-of-three-balanced": (TWO, [_around(2, LN5), _onto((1, 2), LN5), _onto((0, 11), LN5)], None, 7 / 3, 61 / 45),
    "full": (_FULL, [_onto((3, 11), LN5)], None, 3.0),
    # Where exp overflows, one expert has all of P: f = P = 1. Two sigmoids of 1 beside ten of 0: P = f = 1/2.
    "far-from-0": (ONE, [_onto((11,), 1000.0)], None, 12.0),
    "sigmoids-far-from-0": (TWO_SIGMOIDS, [_onto((0, 7), 1000.0, -1000.0)], None, 6.0),
    # Sigmoids of some 1e-26, five times as much for two of twelve.
    "faint-sigmoids": (TWO_SIGMOIDS, [_onto((0, 7), LN5 - 60, -60.0)] * 2, None, 3.0),
    # The bias sends all tokens to experts 1 and 3, whose scores are 1/4: f = 1/2, P = 1/16, so 3/4. Counted by score
    # alone, f is that of experts 0 and 7, so 9/4.
    "bias-in-f": (TWO_SIGMOIDS, [_onto((0, 7), LN3, -LN3)] * 2, _raised((1, 3), 5.0), (3 / 4, 9 / 4)),
    "bias-not-in-p": (TWO_SIGMOIDS, [_onto((0, 7), LN3, -LN3)], _raised((0, 7), 0.1), 9 / 4),
}  # fmt: skip


@contract("MOE-05a", asks="run_block", cases=AUX, source="arXiv 2412.19437, eq. 17-20",
          conventions=(*OVER, "gate-sum"))  # fmt: skip
def the_balance_loss_is_the_declared_one(
    stack: Blocks,
    moe: Moe,
    logits: list[list[list[float]]],
    bias: Sequence[float] | None,
    aux: float | tuple[float, ...],
    pooled: float | None = None,
) -> None:
    """The balance loss (`aux`) is E times the sum over experts of f · P, averaged over sequences: f is an expert's
    share of the sequence's assignments, P its mean router probability in the sequence.

    A balanced sequence has a loss of 1 for every k, every number of experts and both score functions, so one
    coefficient serves all. The selection bias never enters P. It may enter f, and so may groups: a stack may count the
    experts it chose, while eq. 18 counts only by score, as Megatron-Core does. An assignment that capacity drops still
    counts in f. A stack may declare that its balance loss is over a microbatch, which this call is, or over the global
    batch. However faint the sigmoids are, their shares add up to 1: a router can push sigmoids below an epsilon in
    their sum, and so the loss to 0. A stack that declares such an epsilon for its gates may have it here.
    """
    got = _loss(stack, "aux", moe, logits, bias)
    aux = aux if pooled is None or chosen(stack, "balance-over") == "sequence" else pooled
    either = aux if isinstance(aux, tuple) else (aux,)
    if chosen(stack, "gate-sum") == "1e-20" and moe.score == "sigmoid":
        total = sum(exp(min(each, 0.0)) / (1 + exp(-abs(each))) for each in logits[0][0])  # of sigmoids, in all rows
        either += tuple(want * total / (total + 1e-20) for want in either)
    words = " or ".join(f"{want:.9g}" for want in either)
    assert any(abs(got - want) <= within(1e-12) * want for want in either), (
        f"the balance loss is {got:.9g}, expected {words}"
    )


# Two of twelve at ln 5, ten at 0: a sum of 20. All at 0: a sum of 12. Shifted by 3: the log of it, and 3.
Z: dict[str, tuple[Moe, list[list[list[float]]], float]] = {
    "two-of-twelve": (TWO, [_onto((3, 11), LN5)], log(20) ** 2),
    "shifted": (SOFTMAX, [_onto((0, 4, 11), 3 + LN5, 3.0)] * 2, (3 + log(24)) ** 2),
    "faint": (TWO, [_onto((3, 11), LN5 - 7, -7.0)], (log(20) - 7) ** 2),
    "sigmoids": (TWO_SIGMOIDS, [_onto((0, 7), LN3, -LN3)], log(6 + 10 / 3) ** 2),
    "groups": (IN_A_GROUP, [_onto((0, 2), LN3, -LN3)], log(6 + 10 / 3) ** 2),
    "mean-over-tokens": (TWO, [_onto((3, 11), LN5), _around(1, log(2))], (log(20) ** 2 + log(13) ** 2) / 2),
    "far-from-0": (ONE, [_onto((6,), 1000.0)], 1e6),
}


@contract("MOE-05b", asks="run_block", cases=Z, source="arXiv 2202.08906, eq. 5")
def the_z_loss_is_the_declared_one(stack: Blocks, moe: Moe, logits: list[list[list[float]]], z: float) -> None:
    """The z loss is the mean over tokens of log(sum(exp(logits)))², for softmax and for sigmoid scores."""
    got = _loss(stack, "z", moe, logits, None)
    assert abs(got - z) <= within(1e-12) * z, f"the z loss is {got:.9g}, expected {z:.9g}"


LEARNING: dict[str, tuple[Moe, Activation]] = {
    "softmax-aux": (replace(SOFTMAX, aux_loss=0.3, z_loss=0.0), "relu2"),
    "sigmoid-aux": (replace(SIGMOID, aux_loss=0.3, z_loss=0.0), "swiglu"),
    "sigmoid-aux-k-1": (replace(SIGMOID, top_k=1, aux_loss=0.3, z_loss=0.0), "relu2"),
    "softmax-z": (replace(SOFTMAX, aux_loss=0.0, z_loss=0.2), "relu2"),
    "sigmoid-z": (replace(SIGMOID, aux_loss=0.0, z_loss=0.2), "relu2"),
    "both": (replace(SOFTMAX, aux_loss=0.3, z_loss=0.2, top_k=4), "swiglu"),
    "neither": (replace(SOFTMAX, aux_loss=0.0, z_loss=0.0), "swiglu"),
}


@contract("MOE-05c", asks="run_block", cases=LEARNING, source=PAPERS, conventions=OVER)
def the_losses_move_the_router_alone(stack: Blocks, moe: Moe, activation: Activation) -> None:
    """With a zero output gradient, the router and everything below it get the gradients of the auxiliary losses,
    weighted as the recipe says; experts and the shared expert get zero gradients.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, activation), 3, 5)
    call = replace(call, dy=numerics.array(torch.zeros(3, 5, 24, dtype=torch.float64)))
    run = stack.run_block(call)

    def words_of(want: expert_calls.OracleAnswer) -> str:
        words = numerics.differences("loss", run.losses, expert_calls.reported_losses(call, run, want), FLOAT64)
        return words or numerics.gradient_differences("gradient of", run.gradients, want.gradients, FLOAT64)

    words = expert_calls.oracle_difference(call, words_of, over=chosen(stack, "balance-over"))
    assert not words, words


SPLITS: dict[str, tuple[Moe, tuple[int, ...]]] = {
    "softmax-2-2": (SOFTMAX, (2, 2)),
    "softmax-1-3": (SOFTMAX, (1, 3)),
    "sigmoid-one-by-one": (SIGMOID, (1, 1, 1, 1)),
    "sigmoid-3-1": (replace(SIGMOID, aux_loss=0.5), (3, 1)),
}


@contract("MOE-05d", asks="run_block", cases=SPLITS, source=PAPERS + "; F01", conventions=OVER)
def microbatches_do_not_change_the_losses(stack: Blocks, moe: Moe, split: tuple[int, ...]) -> None:
    """Auxiliary losses and their gradients, averaged over microbatches in proportion to their sequences, equal those of
    the whole batch.

    A balance loss computed over a microbatch changes with the micro batch size, and so does what the router learns. A
    stack that declares such a loss is not asked.
    """
    if chosen(stack, "balance-over") != "sequence":
        raise NotOffered("declares that its balance loss is over more than a sequence", "case")

    call = expert_calls.drawn_call(expert_calls.with_moe(moe), sum(split), 5)
    x_BTD, name = numerics.tensor(call.x), "mixer.router.weight"
    zeros_BTD = torch.zeros_like(x_BTD)
    whole = stack.run_block(replace(call, dy=numerics.array(zeros_BTD)))
    total = dict.fromkeys(("aux", "z"), torch.zeros((), dtype=torch.float64))
    gradient = torch.zeros(12, 24, dtype=torch.float64)
    for part_BTD, zeros in zip(torch.split(x_BTD, list(split)), torch.split(zeros_BTD, list(split)), strict=True):
        run = stack.run_block(replace(call, x=numerics.array(part_BTD), dy=numerics.array(zeros)))
        share = len(part_BTD) / len(x_BTD)
        total = {loss: total[loss] + share * numerics.tensor(run.losses[loss]) for loss in total}
        gradient = gradient + share * numerics.tensor(run.gradients[name])
    words = numerics.differences("loss", whole.losses, total, FLOAT64)
    words = words or numerics.difference(f"gradient of {name}", whole.gradients[name], gradient, FLOAT64)
    assert not words, f"in one batch of {len(x_BTD)} against parts of {split} {words}"


TWICE = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "without-losses": PLAIN_SIGMOID}


@contract("MOE-05e", asks="run_block", cases=TWICE, source="F13")
def a_second_call_counts_nothing_twice(stack: Blocks, moe: Moe) -> None:
    """Running a block twice on the same inputs gives the same losses, counts and gradients: a block keeps no state
    between calls.

    A block that accumulates a value in its forward pass counts it twice when that forward pass is recomputed in the
    backward pass.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), 2, 7)
    once, again = stack.run_block(call), stack.run_block(call)
    words = numerics.differences("loss", again.losses, once.losses, EXACT)
    words = words or numerics.differences("seen", again.seen, once.seen, EXACT)
    words = words or numerics.differences("gradient of", again.gradients, once.gradients, EXACT)
    assert not words, f"in the second call {words}"


# Logits that bfloat16 holds, as it does the router's weights then, and exponentials that it does not. Two of twelve at
# 2, ten at 0: P = e² / (2e² + 10) each, f = 1/2, so 12 P. Two sigmoids of 2 beside ten of -2 have the same P, since one
# sigmoid is e² times the other. The z loss is that of a sum of 2e² + 10.
P_HALF, SUM = exp(2) / (2 * exp(2) + 10), 2 * exp(2) + 10
IN_HALF: dict[str, tuple[Any, ...]] = {
    "softmax": ("aux", TWO, [_onto((3, 11), 2.0)], 12 * P_HALF),
    "sigmoids": ("aux", TWO_SIGMOIDS, [_onto((0, 7), 2.0, -2.0)], 12 * P_HALF),
    "softmax-of-half-logits": ("aux", TWO, [_onto((3, 11), 2.0)], 12 * P_HALF, "bfloat16"),
    "sigmoids-of-half-logits": ("aux", TWO_SIGMOIDS, [_onto((0, 7), 2.0, -2.0)], 12 * P_HALF, "bfloat16"),
    "z": ("z", TWO, [_onto((3, 11), 2.0)], log(SUM) ** 2),
    "z-of-sigmoids": ("z", replace(TWO_SIGMOIDS, z_loss=1e-3), [_onto((0, 7), 2.0)], log(SUM) ** 2),
}


@contract("MOE-05h", asks="run_block", cases=IN_HALF, source="Megatron-LM#2765; " + PAPERS)
def the_losses_are_float32_under_bfloat16(
    stack: Blocks, loss: str, moe: Moe, logits: list[list[list[float]]], want: float, router: Element | None = None
) -> None:
    """Under bfloat16 activations, the balance loss and the z loss are computed in float32 from float32 scores.

    Activations, router weights and logits here are exact in bfloat16, so the losses must be those of float64 within
    float32, also where the router's product is in bfloat16. With drawn ones the loss shows whether that product is in
    bfloat16 or in float32. A sigmoid or a softmax in bfloat16 is off by a thousandth, and ties between experts appear
    that are none.
    """
    got = _loss(stack, loss, moe, logits, None, "bfloat16", router)
    assert abs(got - want) <= 2e-6 * want, f"under bfloat16 the {loss} loss is {got:.9g}, expected {want:.9g}"
    if router is not None:
        call = expert_calls.drawn_call(expert_calls.with_moe(moe), 1, 5, "bfloat16")
        wide, half = (float(numerics.tensor(stack.run_block(each).losses[loss])) for each in
                      (call, replace(call, router=router)))  # fmt: skip
        assert wide != half, f"with a router's product in {router} and in float32 the {loss} loss is {half:.9g}"


def _loss(
    stack: Blocks, name: str, moe: Moe, logits: list[list[list[float]]], bias: Sequence[float] | None,
    dtype: Element = "float64", router: Element | None = None,
) -> float:  # fmt: skip
    call = expert_calls.labelled_call(moe, logits, bias=bias, dtype=dtype)
    found = stack.run_block(replace(call, router=router)).losses
    assert name in found, f"the losses are {', '.join(sorted(found)) or 'none'}; {name} is missing"
    return float(numerics.tensor(found[name]))
