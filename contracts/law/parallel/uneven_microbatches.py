"""Gradient accumulation over microbatches of unequal size and length: one step, in which every label weighs the same.

No whole batch has these microbatches as its parts. On one rank the step is compared with its microbatches, each run
by itself, once for each loss: a microbatch adds its own gradient, weighted by its share of what the loss counts
(labels, sequences, tokens). Runs on several ranks are then compared with one rank.
"""

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.late import Tensor, torch
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, borrowed, own_axis
from contracts.law._support.step_comparison import (
    gradient_differences,
    label_difference,
    loss_difference,
    on_one_rank_and_many,
)
from contracts.law._support.training_run import batch, large_expert_weights
from contracts.spec import (
    FLOAT64_SCAN,
    Arrays,
    Execution,
    Moe,
    NotOffered,
    Recipe,
    Session,
    Tokens,
    Training,
    chosen,
    within,
)

Rows = tuple[tuple[tuple[int, ...], int], ...]
PARTS: tuple[Rows, ...] = (  # documents of each row, and how many labels are masked
    (((16,), 13), ((4, 12), 0)),
    (((10,), 7), ((3, 7), 0), ((10,), 10)),
    (((22,), 1), ((5, 17), 4)),
    (((8,), 0), ((2, 6), 1)),
)
LABELS, ROWS, TOKENS = (16, 10, 36, 12), (2, 3, 2, 2), (32, 30, 44, 16)
"""Counts of each microbatch, by hand."""
ORDERS: dict[str, tuple[int, ...]] = {
    "as-they-come": (0, 1, 2, 3),
    "longest-first": (2, 0, 1, 3),
    "shortest-first": (3, 1, 0, 2),
    "two": (1, 2),
}
STAGES = replace(SPREAD, name="windows-in-stages", pattern="AEM|RE")
QUARTERS = replace(SPREAD, name="windows-in-quarters", pattern="A|E|MR|E")


@contract(
    "PAR-05f",
    asks=("built", "train"),
    cases={name: (order,) for name, order in ORDERS.items()},
    conventions=("window-divides-by", "balance-over"),
    source="F19",
)
def a_window_is_the_sum_of_its_microbatches(stack: Training, order: tuple[int, ...]) -> None:
    """A step over microbatches of 16, 10, 22 and 8 tokens has the losses and gradients of its microbatches, weighted by
    their counts: of labels for the main loss, of sequences for the balance loss, of tokens for the router's z-loss.

    A mean of means over-weights short sequences. Padding to the longest microbatch counts tokens that nobody wrote.
    Document bounds and positions cached from the first microbatch are wrong for shorter ones. If a stack declares
    the mean of microbatches' means, or a balance loss over a microbatch, each microbatch weighs the same in it.
    """
    if chosen(stack, "balance-over") == "global-batch":
        raise NotOffered("declares a balance loss that no microbatch has by itself", "case")
    alike = (1,) * len(LABELS)
    labels = LABELS if chosen(stack, "window-divides-by") == "labels" else alike
    rows = ROWS if chosen(stack, "balance-over") == "sequence" else alike

    weights = large_expert_weights(stack, SPREAD)
    (found,) = stack.train(_session(SPREAD, Execution(microbatches=len(order)), (order,), weights)).steps
    counted = sum(LABELS[each] for each in order)
    assert found.tokens == counted, f"{found.tokens} labels count in the window, expected {counted}"
    parts = {each: _single_losses(stack, weights, _micro(0, each)) for each in order}
    whole = {"lm": labels, "aux": rows, "z": TOKENS}
    want: dict[str, Tensor] = {}
    for loss, counts in whole.items():
        share = {each: counts[each] / sum(counts[other] for other in order) for each in order}
        mean = sum(parts[each][loss][0] * share[each] for each in order)
        got = found.losses.get(loss, float("nan"))
        assert abs(got - mean) <= within(1e-11) * mean, (
            f"{loss} is {got:.10g} over the window, the weighted mean of its microbatches is {mean:.10g}"
        )
        for name in parts[order[0]][loss][1]:
            part = torch.stack([parts[each][loss][1][name] * share[each] for each in order]).sum(0)
            want[name] = want[name] + part if name in want else part
    words = numerics.gradient_differences("over the window the gradient of", found.gradients, want, FLOAT64_SCAN)
    assert not words, words


def _single_losses(stack: Training, weights: Arrays, micro: Tokens) -> Mapping[str, tuple[float, Mapping[str, Tensor]]]:
    """Each loss of a microbatch by itself, and the gradient of its term."""
    runs = {}
    for loss, moe in (
        ("lm", _coefficients(0.0, 0.0)),
        ("aux", _coefficients(0.3, 0.0)),
        ("z", _coefficients(0.0, 0.05)),
    ):
        recipe = replace(SPREAD, moe=moe)
        session = Session(
            recipe=recipe, steps=1, execution=Execution(precision="float64"), batches=(micro,), weights=weights,
            observe=frozenset({"gradients"}),
        )  # fmt: skip
        (step,) = stack.train(session).steps
        runs[loss] = step.losses[loss], numerics.tensors(step.gradients)
    plain = runs["lm"][1]
    more = {
        loss: (value, {name: each - plain[name] for name, each in gradients.items()})
        for loss, (value, gradients) in runs.items()
        if loss != "lm"
    }
    return {"lm": runs["lm"], **more}


def _coefficients(aux: float, z: float) -> Moe:
    assert SPREAD.moe is not None
    return replace(SPREAD.moe, aux_loss=aux, z_loss=z)


SPREAD_OUT: dict[str, tuple[Recipe, Execution, int]] = {
    name: (recipe, replace(execution, microbatches=4), execution.world)
    for name, recipe, execution in (
        ("dp2", SPREAD, own_axis(2)),
        ("fsdp2", SPREAD, own_axis(2, fsdp=True)),
        ("tp2-sp", SPREAD, own_axis(2, tp=2, sp=True)),
        ("borrowed-ep2-fsdp2", SPREAD, borrowed(2, ep=2, fsdp=True)),
        ("pp2", STAGES, own_axis(2, pp=2)),
        ("pp2-interleaved", QUARTERS, replace(own_axis(2, pp=2), schedule="interleaved")),
        ("pp2-beside-dp2", STAGES, own_axis(4, pp=2)),
        ("pp2-beside-tp2-sp", STAGES, own_axis(4, pp=2, tp=2, sp=True)),
        ("pp4", QUARTERS, own_axis(4, pp=4)),
    )
}


@contract("PAR-05g", asks=("built", "train"), cases=SPREAD_OUT, source="F19; F20", tier="dist")
def a_window_of_unequal_microbatches_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """On several ranks, two steps over microbatches with different numbers of sequences, lengths and labels have the
    losses, label counts and gradients by name of one rank.

    A stage that receives into the buffer of the first microbatch reads leftovers of an older one after a shorter one,
    and gloo does not report it. If ranks divide by their own label counts, a label's weight depends on its rank.
    """
    execution = in_a_layout_of(stack, execution)
    orders = ((0, 1, 2, 3), (2, 3, 0, 1))
    session = _session(recipe, execution, orders, large_expert_weights(stack, recipe))
    for one, many in on_one_rank_and_many(stack, session, microbatches=4):
        words = label_difference(one, many) or loss_difference(one, many) or gradient_differences(one, many)
        assert not words, words


def _session(recipe: Recipe, execution: Execution, orders: tuple[tuple[int, ...], ...], weights: Arrays) -> Session:
    windows = tuple(tuple(_micro(step, each) for each in order) for step, order in enumerate(orders))
    return Session(
        recipe=recipe, steps=len(orders), execution=replace(execution, precision="float64"), windows=windows,
        weights=weights, observe=frozenset({"gradients"}),
    )  # fmt: skip


def _micro(step: int, number: int) -> Tokens:
    return batch(f"window {step} {number}", SPREAD.vocab, PARTS[number])
