"""The selection bias of a router: one move per optimizer step under gradient accumulation, and in transformers with
experts on one rank and on several."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.expert_calls import experts_of
from contracts.law._support.late import torch
from contracts.law._support.small_models import one_rank_and_many, session
from contracts.law._support.step_comparison import bias_differences
from contracts.law._support.training_run import DENSE, LETTERS, batch, batches, drawn_weights, run, table
from contracts.law._support.transformer_layouts import G, H, L, cells_named
from contracts.spec import (
    FLOAT32,
    FLOAT32_TRANSFORMER,
    FLOAT64,
    Execution,
    Moe,
    Recipe,
    Refused,
    Session,
    Step,
    Training,
    chosen,
)

BIASED = replace(
    LETTERS,
    name="letters-biased",
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25),
)
"""Layers 1 and 5 route."""
HALF = replace(
    DENSE, name="dense-biased-half", dtype="bf16",
    moe=Moe(experts=14, top_k=3, expert_hidden=16, score="sigmoid", selection_bias=True, bias_rate=1e-3, aux_loss=0.0),
)  # fmt: skip
"""A E A E; layers 1 and 3 route. Experts are a multiple of 8 wide, as grouped products in 16 bits want them."""
ONE_DOCUMENT = (((13,), 3), ((13,), 0), ((13,), 6))


CUTS = {"one": (1,), "three": (3,), "five": (5,), "recomputed": (2, True)}


@contract("MOE-06b", asks=("built", "train"), cases=CUTS, source="F18; F13")
def the_selection_bias_moves_once_a_step(stack: Training, microbatches: int, recompute: bool = False) -> None:
    """Every router's selection bias moves by its rate once per optimizer step: up for experts with fewer assignments in
    the whole step than the mean, down for experts with more.

    The check runs two steps with two routed layers. An update per microbatch moves the bias once for each microbatch,
    by a part of the counts. A bias that one layer's flag leaves out stays zero forever. A counter in the forward pass
    counts twice where the backward pass runs it again.
    """
    weights = drawn_weights(table(stack, BIASED))
    names = sorted(name for name in stack.built(BIASED, "nemo_native").buffers if name.endswith("bias"))
    assert len(names) == 2, f"the routers of layers 1 and 5 have a selection bias; found {names}"
    trained = run(stack, BIASED, batches(2), "buffers", weights=weights, microbatches=microbatches, recompute=recompute)
    expected = {name: torch.zeros(14, dtype=torch.float64) for name in names}
    for step in trained.steps:
        seen = numerics.tensors(step.seen)
        for name, layer in zip(names, (1, 5), strict=True):
            counts = seen.get(f"layers.{layer}.counts")
            assert counts is not None, f"step {step.number} counted nothing in layer {layer}"
            assert int(counts.sum()) == 195, (
                f"layer {layer} counted {int(counts.sum())} assignments, expected 5 · 13 · 3"
            )
            expected[name] += 0.25 * torch.sign(195 / 14 - counts.double())
            words = numerics.difference(f"{name} after step {step.number}", step.buffers[name], expected[name], FLOAT64)
            assert not words, words


@contract("MOE-06h", asks=("built", "train"), cases={"from-one": (HALF, 1.0), "from-minus-four": (HALF, -4.0)},
          conventions=("bias-moves",), source="F09")  # fmt: skip
def the_selection_bias_stays_float32(stack: Training, recipe: Recipe, begin: float) -> None:
    """Under bfloat16 a router's selection bias stays float32 and moves by its whole rate each step, so no update is
    rounded away.

    A wrapper that casts a model casts its buffers too. In bfloat16 a bias of 1 plus 0.001 is 1: the router never
    balances, and nothing else shows it. A counter that continues from the step before moves it by what all steps asked.
    A stack may declare that moves are centred.
    """
    centred = chosen(stack, "bias-moves") == "centred"

    shapes = {name: shape for name, shape in stack.built(recipe, "nemo_native").buffers.items() if "bias" in name}
    assert len(shapes) == 2, f"the routers of layers 1 and 3 have a selection bias; found {sorted(shapes)}"
    buffers = {name: torch.full(shape, begin) for name, shape in shapes.items()}
    given = tuple(replace(batch(f"half {step}", rows=ONE_DOCUMENT), documents=None) for step in range(3))
    trained = run(
        stack, recipe, given, "buffers", weights=drawn_weights(table(stack, recipe)), declared=True,
        buffers=numerics.arrays(buffers),
    )  # fmt: skip
    want = {name: each.double() for name, each in buffers.items()}
    for step in trained.steps:
        seen = numerics.tensors(step.seen)
        for name, layer in zip(sorted(shapes), (1, 3), strict=True):
            found, counts = step.buffers[name], seen.get(f"layers.{layer}.counts")
            assert found.dtype == "float32", f"{name} is held in {found.dtype}, expected float32"
            held = numerics.tensor(found).double()
            if counts is None:  # a stack that keeps none: each expert moves by the rate or rests, not all rest
                moves = ((held - want[name]) / 1e-3).round().clamp(-1, 1)
                moves = moves if bool(moves.any()) else torch.ones_like(moves)
            else:
                total, asked = int(counts.sum()), experts_of(recipe).top_k * math.prod(given[0].tokens.shape)
                assert total == asked, (
                    f"step {step.number} counted {total} assignments in layer {layer}, expected {asked}"
                )
                moves = torch.sign(counts.double().mean() - counts.double())
            want[name] = want[name] + 1e-3 * (moves - moves.mean() if centred else moves)
            expert = int((held - want[name]).abs().argmax())
            assert abs(held[expert] - want[name][expert]) < 1e-5, (
                f"{name} of expert {expert} is {held[expert]:.7g} after step {step.number}, "
                f"expected {want[name][expert]:.7g}"
            )


BIASED_TRANSFORMERS = cells_named(
    "dp2", "hsdp-2x2", "tp2-sp", "ep2", "borrowed-ep2", "borrowed-ep2-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp"
)


@contract("MOE-06e", asks=("built", "train"), cases=BIASED_TRANSFORMERS, source="F18; arXiv 2408.15664", tier="dist")
def a_bias_of_a_transformer_moves_by_all_counts(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Over three steps, the router bias of a transformer on several ranks matches one rank in every layer; where the
    stack reports counts, they count each assignment of the whole batch once.
    """
    assert recipe.moe is not None
    for alone, many in one_rank_and_many(stack, recipe, execution, 3, "buffers"):
        assignments = 4 * recipe.seq_length * recipe.moe.top_k
        words = bias_differences(alone, many, assignments, FLOAT32_TRANSFORMER)
        assert not words, words


FIRST, SECOND = "layers.1.mixer.router.bias", "layers.3.mixer.router.bias"
KINDS = {"grouped": replace(G, moe=L.moe), "latent": L, "hybrid": replace(H, moe=L.moe)}
NEEDS = {"": ("experts", "selection-bias"), "hybrid": ("experts", "selection-bias", "mamba")}


@contract("MOE-06k", asks=("built", "train"), cases=KINDS, needs=NEEDS, source="arXiv 2408.15664; EXB-01")
def every_router_bias_moves_in_every_kind_of_model(stack: Training, recipe: Recipe) -> None:
    """In each step the selection bias of every layer moves: the largest and the smallest move of its experts are one
    rate or two rates apart. Step 2 moves them as in a run that begins with the weights and biases that step 1 left.

    The update of biases is registered for each kind of model by itself, and a model without it trains on: biases of 0
    change no choice, on one rank and on many alike. A counter that nobody sets to zero moves them by what all steps
    asked for. This check knows no counts, so that a stack that reports none can be asked.
    """
    asked = session(stack, recipe, Execution(precision="float32"), 3, "buffers", "weights")
    first, second, third = stack.train(asked).steps
    _moves(asked, (first, second, third))
    begun = replace(asked, steps=1, batches=asked.batches[1:2], weights=first.weights, buffers=first.buffers)
    (alone,) = stack.train(begun).steps
    words = numerics.differences("after step 2, with step 1 in the run,", second.buffers, alone.buffers, FLOAT32)
    assert not words, words


APART: dict[str, tuple[Mapping[str, float]]] = {
    "half-and-double": ({FIRST: 0.5, SECOND: 2.0},),
    "the-first-rests": ({FIRST: 0.0},),
    "the-second-rests": ({SECOND: 0.0},),
}


@contract("MOE-06l", asks=("built", "train"), cases=APART, needs=("experts", "selection-bias", "bias-rates"),
          source="torchtitan #3686")  # fmt: skip
def each_selection_bias_moves_by_its_own_rate(stack: Training, rates: Mapping[str, float]) -> None:
    """If layers have rates of their own, each selection bias moves by its layer's rate. If one rate is 0, that bias
    does not move and the others do, or the run is refused.

    What reads the rate of the first layer, or stops at the first layer without one, leaves every router of the model
    without a balance, and trains on.
    """
    asked = session(stack, KINDS["grouped"], Execution(precision="float32"), 3, "buffers")
    asked = replace(asked, rates=rates, buffers={})  # a layer without a rate may have no bias
    try:
        steps = stack.train(asked).steps
    except Refused as refused:
        if all(rates.values()) or "rates" not in refused.fields:
            raise
        return
    _moves(asked, steps)


def _moves(asked: Session, steps: Iterable[Step]) -> None:
    """In each step two experts of a layer move one or two of its rates apart, or not at all if its rate is 0."""
    assert asked.recipe.moe is not None
    rate = asked.recipe.moe.bias_rate
    before = numerics.tensors(asked.buffers)
    moving = {name for name in (FIRST, SECOND) if asked.rates.get(name, 1.0)}
    for step in steps:
        after = {name: each for name, each in numerics.tensors(step.buffers).items() if name.endswith("bias")}
        missing = ", ".join(sorted(moving - after.keys()))
        assert not missing, f"both layers with experts have a selection bias; {missing} is missing"
        for name, bias_E in after.items():
            moved_E = bias_E - before[name].to(bias_E.dtype) if name in before else bias_E
            share = asked.rates.get(name, 1.0)
            apart = float(moved_E.max() - moved_E.min()) / rate
            assert any(abs(apart - each * share) < 1e-3 for each in (1, 2)), (
                f"{name}: in step {step.number} two experts moved {apart:.3g} rates apart, expected "
                f"{' or '.join(f'{each:g}' for each in dict.fromkeys((share, 2 * share)))}"
            )
        before = after
