"""The dense MLP: its two activations, scaling with its weights, independence of tokens."""

from dataclasses import replace
from typing import Literal

from contracts.contract import contract
from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.attention_calls import PACKED, ROWS, TOLERANCES, Lengths, call_of, with_weights
from contracts.law._support.late import torch
from contracts.law._support.recipes import E_LAYER, SMALL
from contracts.spec import EXACT, FLOAT64, Blocks, Element, Recipe, within

_ASKS = ("block_weights", "run_block")

RELU2 = replace(SMALL, moe=None)
SWIGLU = replace(RELU2, activation="swiglu")

DEFINED: dict[str, tuple[Recipe, Lengths, Element] | tuple[Recipe, Lengths, Element, float]] = {
    "relu2": (RELU2, ROWS, "float64"),
    "swiglu": (SWIGLU, ROWS, "float64"),
    "relu2-narrow": (replace(RELU2, ffn_hidden=3), PACKED, "float64"),
    "swiglu-narrow": (replace(SWIGLU, ffn_hidden=3), PACKED, "float64"),
    "wide-eps": (replace(RELU2, norm_eps=0.1), ROWS, "float64"),
    "relu2-float32": (RELU2, ROWS, "float32"),
    "swiglu-float32": (SWIGLU, ROWS, "float32"),
    "relu2-biased": (replace(RELU2, biases=("mlp",)), ROWS, "float64"),
    "swiglu-biased": (replace(SWIGLU, biases=("mlp",)), PACKED, "float64"),
    "swiglu-saturated": (SWIGLU, ROWS, "float64", 1000.0),
}


@contract("BLK-06h", asks=_ASKS, cases=DEFINED, source="naming")
def the_mlp_is_its_definition(
    stack: Blocks, recipe: Recipe, lengths: Lengths, dtype: Element, loud: float = 1.0
) -> None:
    """The dense MLP has the outputs and every gradient of w2 relu(w1 x)² with relu2, and of w2 (silu(w1 x) · w3 x) with
    swiglu.

    Written out as x · exp(x) / (1 + exp(x)), silu is NaN from 710 on (in float32 from 89 on), where it should be x.
    """
    call = call_of(stack, recipe, lengths, layer=E_LAYER, dtype=dtype)
    if loud != 1:
        louder = numerics.array(loud * numerics.tensor(call.weights["mixer.w1.weight"]))
        call = replace(call, weights=with_weights(call, {"mixer.w1.weight": louder}))
    assert call.dy is not None
    run = stack.run_block(call)
    weights = {name: each.requires_grad_() for name, each in numerics.tensors(call.weights, torch.float64).items()}
    leaves = {**weights, "x": numerics.tensor(call.x, torch.float64).requires_grad_()}
    y_BTD = torch.stack([oracles.mlp.dense(recipe, weights, x_TD) for x_TD in leaves["x"]])
    words = numerics.difference("y", run.y, y_BTD.detach(), TOLERANCES[dtype])
    assert not words, words
    objective = (y_BTD * numerics.tensor(call.dy, torch.float64)).sum()
    want = dict(zip(leaves, torch.autograd.grad(objective, list(leaves.values())), strict=True))
    words = numerics.gradient_differences("gradient", run.gradients, want, TOLERANCES[dtype])
    assert not words, words


Named = Literal["relu2", "swiglu"]
# One token with a single element; the norm's weight undoes the norm. w1 h, w3 h → the inner values.
BY_HAND: dict[str, tuple[Named, tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {
    "relu2": ("relu2", (3.0, -3.0, 0.0, 0.5), (), (9.0, 0.0, 0.0, 0.25)),
    # silu(1) = 0.731058578630005, silu(-2) = -0.238405844044235
    "swiglu": ("swiglu", (1.0, -2.0, 0.0, 1.0), (2.0, 3.0, 5.0, -1.0),
               (1.46211715726001, -0.715217532132705, 0.0, -0.731058578630005)),
}  # fmt: skip


@contract("BLK-06i", asks=_ASKS, cases=BY_HAND, source="naming")
def the_activation_has_the_values_worked_out_by_hand(
    stack: Blocks, activation: Named, gates: tuple[float, ...], ups: tuple[float, ...], inner: tuple[float, ...]
) -> None:
    """relu2 is max(x, 0)² and swiglu is silu(w1 x) · w3 x: both match values worked out by hand."""
    recipe = replace(RELU2, hidden=4, heads=1, kv_groups=1, ffn_hidden=4, activation=activation, norm_eps=1e-30)
    names = {"mixer.w1.weight": gates, "mixer.w3.weight": ups}
    shapes = stack.block_weights(recipe, E_LAYER, "nemo_native")
    weights = {name: torch.zeros(shape.shape, dtype=torch.float64) for name, shape in shapes.items()}
    weights["norm.weight"] += 0.5  # undoes the norm of a vector with a single element
    weights["mixer.w2.weight"] += torch.eye(4, dtype=torch.float64)
    for name, values in names.items():
        if values:
            weights[name][:, 0] = torch.tensor(values, dtype=torch.float64)
    x_BTD = torch.tensor([[[7.0, 0, 0, 0]]], dtype=torch.float64)
    call = call_of(stack, recipe, ((1,),), layer=E_LAYER, backward=False)
    y = stack.run_block(replace(call, weights=numerics.arrays(weights), x=numerics.array(x_BTD))).y
    for element, (got, want) in enumerate(zip(numerics.tensor(y).flatten().tolist(), inner, strict=True)):
        assert abs(got - want) < within(1e-12), f"{activation} of {gates[element]:g} is {got:.9g}, expected {want:.9g}"


SCALED: dict[str, tuple[Recipe, str, float, float]] = {  # recipe, weight, factor on it, factor on the output
    "relu2-w1": (RELU2, "mixer.w1.weight", 3.0, 9.0),
    "relu2-norm": (RELU2, "norm.weight", 3.0, 9.0),
    "relu2-w2": (RELU2, "mixer.w2.weight", -3.0, -3.0),
    "swiglu-w3": (SWIGLU, "mixer.w3.weight", -3.0, -3.0),
    "swiglu-w2": (SWIGLU, "mixer.w2.weight", 3.0, 3.0),
}


@contract("BLK-06j", asks=_ASKS, cases=SCALED, source="naming")
def the_mlp_scales_with_its_weights(stack: Blocks, recipe: Recipe, name: str, factor: float, expected: float) -> None:
    """Tripling w1 multiplies the output of a relu2 MLP by nine; scaling w3 of a swiglu MLP, or w2 of either, scales the
    output by the same factor.
    """
    call = call_of(stack, recipe, ROWS, layer=E_LAYER, backward=False)
    weight = numerics.array(factor * numerics.tensor(call.weights[name]))
    scaled = stack.run_block(replace(call, weights=with_weights(call, {name: weight}))).y
    words = numerics.difference("y", scaled, expected * numerics.tensor(stack.run_block(call).y), FLOAT64)
    assert not words, f"{name} times {factor:g}, against {expected:g} times the output: {words}"


RESTING = {"relu2": (RELU2, "mixer.w1.weight"), "swiglu": (SWIGLU, "mixer.w1.weight")}


@contract("BLK-06k", asks=_ASKS, cases=RESTING, source="naming")
def an_mlp_at_zero_has_finite_gradients(stack: Blocks, recipe: Recipe, name: str) -> None:
    """If w1 x is exactly 0, the MLP's output is 0 and every gradient is finite; with relu2 the gradient of w1 is 0.

    A power written as exp(2 log x) has the right value at 0 and no derivative.
    """
    call = call_of(stack, recipe, ROWS, layer=E_LAYER)
    zero = numerics.array(torch.zeros_like(numerics.tensor(call.weights[name])))
    run = stack.run_block(replace(call, weights=with_weights(call, {name: zero})))
    assert not bool(numerics.tensor(run.y).any()), f"{name} is zero, and the output is not"
    for each, gradient in run.gradients.items():
        finite = bool(torch.isfinite(numerics.tensor(gradient)).all())
        assert finite, f"{name} is zero, and the gradient of {each} is not finite"
    moves = bool(numerics.tensor(run.gradients[name]).any())
    want = recipe.activation == "swiglu"  # silu'(0) is 1/2
    assert moves == want, f"{name} is zero, and its gradient is {'not ' if moves else ''}zero with {recipe.activation}"


TOKENS = {"relu2": (RELU2, PACKED, 3), "swiglu": (SWIGLU, ROWS, 7)}


@contract("BLK-06l", asks=_ASKS, cases=TOKENS, source="naming")
def an_mlp_takes_each_token_by_itself(stack: Blocks, recipe: Recipe, lengths: Lengths, t: int) -> None:
    """Replacing token t changes no output of a dense MLP at any other token, before or after t, by a single bit."""
    call = call_of(stack, recipe, lengths, layer=E_LAYER, backward=False)
    other_BTD = numerics.tensor(call.x)
    other_BTD[1, t] = fixtures.normal("other", (recipe.hidden,), scale=100)
    one, two = (numerics.tensor(stack.run_block(each).y) for each in (call, replace(call, x=numerics.array(other_BTD))))
    assert bool((one[1, t] != two[1, t]).any()), f"token {t} of row 1 was replaced, and its output is the same"
    one[1, t] = two[1, t]
    words = numerics.difference("y of the others", two, one, EXACT)
    assert not words, f"token {t} of row 1 was replaced, and {words}"
