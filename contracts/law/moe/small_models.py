"""The router biases of transformers with experts, on one rank and on several."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.small_models import one_rank_and_many, session
from contracts.law._support.step_comparison import bias_differences
from contracts.law._support.transformer_layouts import G, H, L, cells_named
from contracts.spec import FLOAT32_TRANSFORMER, Execution, Recipe, Refused, Session, Step, Training

BIASED = cells_named(
    "dp2", "hsdp-2x2", "tp2-sp", "ep2", "borrowed-ep2", "borrowed-ep2-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp"
)


@contract("MOE-06e", asks=("built", "train"), cases=BIASED, source="F18; arXiv 2408.15664", tier="dist")
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
    rate or two rates apart.

    The update of biases is registered for each kind of model by itself, and a model without it trains on: biases of 0
    change no choice, on one rank and on many alike. This check knows no counts, so that a stack that reports none can
    be asked.
    """
    asked = session(stack, recipe, Execution(precision="float32"), 3, "buffers")
    _moves(asked, stack.train(asked).steps)


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
    rate, numerics = asked.recipe.moe.bias_rate, instruments.numerics
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
