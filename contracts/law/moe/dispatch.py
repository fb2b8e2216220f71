"""Dispatch and combine: every token reaches its experts and returns to its place, whatever other tokens do."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import (
    CROWD,
    IDLE_ENDS,
    MIXED,
    PLAIN_SIGMOID,
    ROUTED,
    SIGMOID,
    SOFTMAX,
    Routes,
    gates_of,
    routed_call,
)
from contracts.law._support.late import Tensor, torch
from contracts.spec import EXACT, FLOAT64, Blocks, Element, Moe, chosen

LABELLED: dict[str, tuple[Moe, Routes, Element]] = {
    "mixed": (ROUTED, MIXED, "float64"),
    "mixed-bfloat16": (ROUTED, MIXED, "bfloat16"),
    "all-tokens-on-three-experts": (ROUTED, CROWD, "float32"),
    "first-and-last-expert-idle": (ROUTED, IDLE_ENDS, "float64"),
    "one-token": (ROUTED, (((7, 2, 10),),), "float64"),
    "k-1": (replace(ROUTED, top_k=1), (((3,), (11,), (3,)), ((10,), (0,), (2,))), "float64"),
    "every-expert": (replace(ROUTED, top_k=12), ((tuple(range(11, -1, -1)), (*range(5, 12), *range(5))),), "float64"),
    "scaled": (replace(ROUTED, route_scale=2.5), MIXED, "float64"),
}


@contract("MOE-02a", asks="run_block", cases=LABELLED, source="F11 F12 F21", conventions=("softmax-router",))
def every_token_comes_back_to_its_place(stack: Blocks, moe: Moe, routes: Routes, dtype: Element) -> None:
    """Dispatch and combine give each token the outputs of its own experts, each times its own gate, and nothing else.

    Identical experts, or an order that is its own inverse, would hide every bug of the two permutations.
    """
    choice = chosen(stack, "softmax-router") if dtype == "bfloat16" else "float32"
    shares = gates_of(moe, rounded=choice != "float32")
    y = expert_calls.rows(stack.run_block(routed_call(moe, routes, dtype)).y)
    # Logits of 22 are rounded to float32; under bfloat16 y is rounded, and the gates may be.
    slack = 2.0**-18 if dtype != "bfloat16" else 2.0**-8 if choice == "float32" else 2.0**-7
    for b, row in enumerate(routes):
        for t, experts in enumerate(row):
            label = 1 + b * len(row) + t
            gates = {expert: moe.route_scale * gate for expert, gate in zip(experts, shares, strict=True)}
            for expert in range(moe.experts):
                want, got = gates.get(expert, 0.0) * label, y[b][t][expert]
                words = f"expert {expert} gave token ({b}, {t}) {got:.6g}, expected gate x label {want:.6g}"
                assert abs(got - want) <= slack * abs(want), words
            rest = [value for value in y[b][t][moe.experts :] if value]
            assert not rest, f"token ({b}, {t}) got {rest[0]} that no expert gives"


CROWDED = {"320": 320, "600": 600}


@contract("MOE-02e", asks="run_block", cases=CROWDED, source="torch issues 137425, 198199")
def many_contributions_add_up_in_float32(stack: Blocks, top_k: int) -> None:
    """Under bfloat16, contributions to a token, and to its gradient, are accumulated in float32.

    Accumulated in bfloat16, a sum of ones stops at 256, because 257 is not a bfloat16 number. Here k experts, all
    chosen and all alike, contribute 1 each.
    """
    moe = Moe(experts=top_k, top_k=top_k, expert_hidden=16, shared_hidden=0, route_scale=float(top_k), aux_loss=0.0)
    ones = torch.ones(top_k, 16, 16)
    weights = {
        "norm.weight": torch.ones(16),
        "mixer.router.weight": torch.zeros(top_k, 16),  # k equal gates, which route_scale makes 1
        "mixer.experts.w1": 16 * ones,  # 64, its own silu, for a token that is 4 in one element
        "mixer.experts.w3": ones / 256,  # 1 / 64; their gradients reach all elements
        "mixer.experts.w2": ones * torch.eye(16)[3],  # from inner element 3
    }
    x_BTD, dy_BTD = 4 * torch.eye(16)[torch.tensor([[5, 2], [9, 0]])], torch.zeros(2, 2, 16)
    dy_BTD[..., 7] = 2.0  # of w2 (silu(w1 x) · w3 x): 1/64 · 16 by w1 and 64 / 256 by w3, a half
    recipe = replace(expert_calls.WIDE, hidden=16, activation="swiglu", moe=moe)
    run = stack.run_block(expert_calls.call_of(recipe, weights, x_BTD, dy_BTD, "bfloat16"))
    y, gradient = expert_calls.rows(run.y)[1][0][7], expert_calls.rows(run.gradients["x"])[1][0][0]
    assert abs(y - top_k) <= 0.01 * top_k, f"{top_k} contributions of 1 add up to {y:g}"
    assert abs(gradient - top_k) <= 0.01 * top_k, f"{top_k} gradients of 1 add up to {gradient:g}"


LARGE = {"softmax": (ROUTED, 2**13), "sigmoid-with-bias": (PLAIN_SIGMOID, 2**13)}


@contract("MOE-02g", asks="run_block", cases=LARGE, source="TransformerEngine#2196; DeepSpeed#8261")
def a_large_call_is_its_sequences(stack: Blocks, moe: Moe, length: int) -> None:
    """A call with more than 2**16 assignments gives each token the output and the gradient that a call with only its
    sequence gives, and its counts equal the sum of those calls' counts.

    Offsets and places that are counted in too small a number wrap in a large call only. One call as several is also
    what a change of the micro batch does.
    """
    call = expert_calls.drawn_call(replace(expert_calls.with_moe(moe, "swiglu"), hidden=8), 3, length)
    x_BTD, dy_BTD = numerics.tensor(call.x), numerics.tensor(call.dy)  # type: ignore[arg-type]  # a drawn call has one
    whole = stack.run_block(call)
    parts = [
        stack.run_block(replace(call, x=numerics.array(x), dy=numerics.array(dy)))
        for x, dy in zip(torch.split(x_BTD, 1), torch.split(dy_BTD, 1), strict=True)
    ]
    for what, found, alone in (
        ("y", whole.y, [part.y for part in parts]),
        ("gradient of x", whole.gradients["x"], [part.gradients["x"] for part in parts]),
    ):
        want = torch.cat([numerics.tensor(each) for each in alone])
        words = numerics.difference(what, found, want, FLOAT64)
        assert not words, f"in a call of {3 * length * moe.top_k} assignments {words}"
    counts = torch.stack([numerics.tensor(part.seen["counts"]) for part in parts]).sum(0)
    words = numerics.difference("counts", whole.seen["counts"], counts, EXACT)
    assert not words, f"in a call of {3 * length * moe.top_k} assignments {words}"


ORDERS = {
    "softmax": (SOFTMAX, (3, 0, 11, 7, 1, 10, 2, 9, 4, 8, 5, 6)),
    "sigmoid-with-bias": (SIGMOID, (10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)),
    "without-losses": (PLAIN_SIGMOID, (10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)),
    "full": (replace(SIGMOID, capacity_factor=0.6), (1, 0, 3, 2, 5, 4, 11, 6, 7, 8, 9, 10)),
}


@contract("MOE-04a", asks="run_block", cases=ORDERS, source="F12")
def names_of_experts_do_not_matter(stack: Blocks, moe: Moe, order: tuple[int, ...]) -> None:
    """Reordering the experts together with their router rows and biases changes no output and no loss, and reorders
    gradients and counts alike.

    Experts that are loaded in the order of their names as text (0, 1, 10, 11, 2 …) no longer match their router rows.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), 2, 7)
    renamed = replace(call, weights=numerics.arrays(_renamed(numerics.tensors(call.weights), order)))
    run, other = stack.run_block(call), stack.run_block(renamed)
    words = numerics.difference("y", other.y, run.y, FLOAT64)
    words = words or numerics.differences("loss", other.losses, run.losses, FLOAT64)
    gradients = _renamed(numerics.tensors(run.gradients), order)
    words = words or numerics.gradient_differences("gradient of", other.gradients, gradients, FLOAT64)
    counts = numerics.tensor(run.seen["counts"])[list(order)]
    words = words or numerics.difference("counts", other.seen["counts"], counts, EXACT)
    assert not words, f"with the experts in the order {order} {words}"


def _renamed(named: dict[str, Tensor], order: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors with their experts in another order."""
    by_expert = ("mixer.router.", "mixer.experts.")
    return {name: each[list(order)] if name.startswith(by_expert) else each for name, each in named.items()}
