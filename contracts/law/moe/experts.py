"""Experts and the shared expert: the block matches its definition, gradients and idle experts included."""

from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import (
    CROWD,
    IDLE_ENDS,
    MIXED,
    PLAIN,
    PLAIN_SIGMOID,
    ROUTED,
    SIGMOID,
    SOFTMAX,
    Activation,
    Routes,
    routed_call,
)
from contracts.law._support.late import torch
from contracts.spec import EXACT, Biased, Blocks, Element, Moe, chosen

DRAWN: dict[str, tuple[Any, ...]] = {  # moe, activation, rows, tokens, dtype, factor on w1, biases
    "softmax-relu2": (SOFTMAX, "relu2", 2, 7, "float64"),
    "sigmoid-swiglu": (SIGMOID, "swiglu", 3, 5, "float64"),
    "without-shared": (replace(SIGMOID, shared_hidden=0, top_k=4), "relu2", 2, 6, "float64"),
    "one-expert-a-token": (replace(SIGMOID, top_k=1), "swiglu", 2, 6, "float64"),
    "groups": (replace(SIGMOID, top_k=4, groups=(4, 2), aux_loss=0.0), "swiglu", 2, 7, "float64"),
    "17-experts": (replace(SOFTMAX, experts=17, top_k=5), "swiglu", 2, 5, "float64"),
    "300-experts": (replace(SIGMOID, experts=300, top_k=4, expert_hidden=3), "relu2", 2, 3, "float64"),
    "one-token": (SOFTMAX, "relu2", 1, 1, "float64"),
    "float32": (SIGMOID, "relu2", 2, 7, "float32"),
    "softmax-without-losses": (PLAIN, "swiglu", 2, 7, "float64"),
    "sigmoid-without-losses": (PLAIN_SIGMOID, "swiglu", 3, 5, "float64"),
    "one-expert-without-losses": (replace(PLAIN_SIGMOID, top_k=1, selection_bias=False), "swiglu", 2, 6, "float64"),
    "float32-without-losses": (PLAIN_SIGMOID, "swiglu", 2, 7, "float32"),
    "groups-relu2-without-losses": (replace(PLAIN_SIGMOID, top_k=4, groups=(4, 2)), "relu2", 2, 7, "float64"),
    "saturated": (PLAIN, "swiglu", 2, 7, "float64", 1000.0),
    "biased": (ROUTED, "swiglu", 2, 7, "float64", 1.0, ("experts", "router")),
    "biased-relu2": (SIGMOID, "relu2", 2, 7, "float64", 1.0, ("experts", "router")),
    "biased-router": (PLAIN, "swiglu", 2, 7, "float64", 1.0, ("router",)),
}


@contract("MOE-02b", asks="run_block", cases=DRAWN, source="arXiv 2412.19437, eq. 12; F01",
          conventions=("balance-over",))  # fmt: skip
def the_block_is_its_definition(
    stack: Blocks, moe: Moe, activation: Activation, batch: int, length: int, dtype: Element, loud: float = 1.0,
    biases: tuple[Biased, ...] = (),
) -> None:  # fmt: skip
    """Output and every gradient of the block match a plain loop over tokens and their experts."""
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, activation, biases), batch, length, dtype)
    if loud != 1:
        louder = numerics.array(loud * numerics.tensor(call.weights["mixer.experts.w1"]))
        call = replace(call, weights={**call.weights, "mixer.experts.w1": louder})
    run = stack.run_block(call)
    tolerance = expert_calls.TOLERANCE[dtype]

    def words_of(want: expert_calls.OracleAnswer) -> str:
        words = numerics.difference("y", run.y, want.routed.y_BTD, tolerance)
        return words or numerics.gradient_differences("gradient of", run.gradients, want.gradients, tolerance)

    words = expert_calls.oracle_difference(call, words_of, over=chosen(stack, "balance-over"))
    assert not words, words


EMPTY = {
    "softmax": (SOFTMAX, "relu2"),
    "sigmoid": (SIGMOID, "swiglu"),
    "without-losses": (PLAIN_SIGMOID, "swiglu"),
}


@contract("MOE-02c", asks="run_block", cases=EMPTY, source="F21; torch issue 192497")
def no_token_is_no_error(stack: Blocks, moe: Moe, activation: Activation) -> None:
    """A call without tokens gives an empty output, zero losses, and a zero gradient for every weight."""
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, activation), 2, 0)
    run = stack.run_block(call)
    assert run.y.shape == (2, 0, 24), f"y of (2, 0, 24) has shape {run.y.shape}"
    zero = torch.zeros((), dtype=torch.float64)
    told = {name for name, weight in (("aux", moe.aux_loss), ("z", moe.z_loss)) if weight or name in run.losses}
    words = numerics.differences("loss", run.losses, dict.fromkeys(told, zero), EXACT)
    zeros = {name: zero.expand(each.shape) for name, each in call.weights.items() if not name.endswith("router.bias")}
    words = words or numerics.differences("gradient of", run.gradients, zeros | {"x": numerics.tensor(call.x)}, EXACT)
    assert not words, words


IDLE: dict[str, tuple[Routes, Element, tuple[int, ...]]] = {
    "in-the-middle": (MIXED, "float64", (6,)),
    "at-the-ends": (IDLE_ENDS, "float64", (0, 5, 6, 7, 9, 10, 11)),
    "at-the-ends-bfloat16": (IDLE_ENDS, "bfloat16", (0, 5, 6, 7, 9, 10, 11)),
    "nearly-all": (CROWD, "bfloat16", (1, 2, 3, 4, 6, 7, 8, 9, 10)),
}


@contract("MOE-02d", asks="run_block", cases=IDLE, source="F18 F21; torch issue 172439")
def an_idle_expert_has_a_zero_gradient(stack: Blocks, routes: Routes, dtype: Element, idle: tuple[int, ...]) -> None:
    """An expert without tokens gets a zero gradient for each of its weights; the gradients of all other experts are
    finite and not zero.
    """
    gradients = stack.run_block(routed_call(ROUTED, routes, dtype, backward=True)).gradients
    for name in ("mixer.experts.w1", "mixer.experts.w2", "mixer.experts.w3"):
        assert name in gradients, f"there is no gradient of {name}"
        found = numerics.tensor(gradients[name])
        for expert, largest in enumerate(found.abs().flatten(1).amax(1).tolist()):
            if expert in idle:
                assert largest == 0, f"expert {expert} has no token, and the gradient of its {name} is {largest}"
            else:
                assert 0 < largest < float("inf"), f"the gradient of expert {expert}'s {name} is {largest}"


SHARED = {  # moe, where tokens go
    "softmax": (PLAIN, MIXED),
    "scaled": (replace(PLAIN, route_scale=2.5), MIXED),
    "k-1": (replace(PLAIN, top_k=1), (((3,), (11,), (3,)), ((10,), (0,), (2,)))),
    "all-slots-taken": (replace(PLAIN, capacity_factor=0.1), CROWD),  # one slot each: 8 of 9 tokens lose all three
}


@contract("MOE-03a", asks="run_block", cases=SHARED, source="naming; Megatron-Core")
def the_shared_expert_serves_each_token_once(stack: Blocks, moe: Moe, routes: Routes) -> None:
    """The shared expert's output is added to every token exactly once, ungated and unscaled, even to tokens that lost
    all their slots.
    """
    y = expert_calls.rows(stack.run_block(routed_call(moe, routes, "float64")).y)
    for b, row in enumerate(routes):
        for t in range(len(row)):
            label, got = 1 + b * len(row) + t, y[b][t][-1]
            words = f"the shared expert gave token ({b}, {t}) {got:.6g}, expected its label {label} once"
            assert abs(got - label) <= 1e-12 * label, words
