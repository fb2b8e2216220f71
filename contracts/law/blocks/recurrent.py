"""R: the M²RNN recurrence, its state, and its float32 arithmetic.

The state of a head is a matrix of 16 keys by 8 values that passes through tanh at every token.
"""

import math
from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support import scan_calls
from contracts.law._support.late import torch
from contracts.law._support.recipes import R_LAYER, SMALL
from contracts.law._support.scan_calls import PACKED, ScanCase, drawn_inputs, run
from contracts.spec import EXACT, FLOAT32_SCAN, FLOAT64, Blocks, Mamba

THREE_GROUPS = replace(SMALL, name="three-groups", mamba=Mamba(heads=6, head_dim=4, state=8, groups=3))

CAUSAL = {
    "plain": (ScanCase(block="m2rnn"), 21),
    "packed-with-state": (ScanCase(block="m2rnn", lengths=PACKED, state=True), 23),
}


@contract("BLK-01d", asks=("block_weights", "run_block"), cases=CAUSAL, source="naming; arXiv 2603.14360")
def r_sees_nothing_of_the_future(stack: Blocks, case: ScanCase, at: int) -> None:
    """In R a token changes no earlier output, and a loss on earlier tokens gives it no gradient: both are exactly 0.

    A loss on the last token does give the first token a gradient.
    """
    scan_calls.sees_nothing_of_the_future(stack, case, at)


APART = {"packed": ScanCase(block="m2rnn", lengths=PACKED)}


@contract("BLK-02d", asks=("block_weights", "run_block"), cases=APART, source="F06")
def r_keeps_documents_apart(stack: Blocks, case: ScanCase) -> None:
    """In R a packed document has exactly no effect on the outputs and gradients of another one."""
    scan_calls.keeps_documents_apart(stack, case)


DEFINED = {
    "plain": ScanCase(block="m2rnn", lengths=((19,), (19,))),
    "packed-with-state": ScanCase(block="m2rnn", lengths=((2, 9, 1, 7), (15, 4)), state=True),
    "three-groups-of-two": ScanCase(block="m2rnn", recipe=THREE_GROUPS, lengths=((7,), (7,), (7,))),
    "float32": ScanCase(block="m2rnn", lengths=((11, 10), (21,)), dtype="float32", state=True),
    "one-token": ScanCase(block="m2rnn", lengths=((1,), (1,)), state=True),
    "a-large-epsilon": ScanCase(block="m2rnn", recipe=replace(SMALL, norm_eps=0.3), lengths=((7,), (7,))),
    "saturated": ScanCase(block="m2rnn", lengths=((9,), (4, 5)), loud=("mixer.wg.weight", "mixer.wf.weight")),
}


@contract("BLK-05a", asks=("block_weights", "run_block"), cases=DEFINED, source="arXiv 2603.14360 §3")
def r_is_its_recurrence(stack: Blocks, case: ScanCase) -> None:
    """R has the output, last state and every gradient of its recurrence, including that of the initial state.

    The recurrence is h_t = f_t h_{t-1} + (1 - f_t) tanh(h_{t-1} W + k_t v_tᵀ) and y_t = q_tᵀ h_t + D v_t, with
    f = exp(-exp(A_log) softplus(f + dt_bias)). The norm of y · silu(g) follows.
    """
    scan_calls.equals_its_definition(stack, case, oracles.recurrent.m2rnn)


HALVES = {
    "in-the-middle": (ScanCase(block="m2rnn"), 20),
    "after-one-token": (ScanCase(block="m2rnn", state=True), 1),
    "inside-a-document": (ScanCase(block="m2rnn", lengths=((9, 28), (17, 20))), 19),
}


@contract("BLK-05b", asks=("block_weights", "run_block"), cases=HALVES, source="naming; arXiv 2603.14360")
def r_passes_its_state(stack: Blocks, case: ScanCase, at: int) -> None:
    """R over a sequence in two calls, the second from the state that the first returns, equals one call."""
    scan_calls.passes_its_state(stack, case, at)


ALONE = {"packed": ScanCase(block="m2rnn", lengths=PACKED)}


@contract("BLK-05c", asks=("block_weights", "run_block"), cases=ALONE, source="F06")
def r_gives_a_packed_document_what_it_gets_alone(stack: Blocks, case: ScanCase) -> None:
    """In R a packed document has the same output, gradient and state as in a row of its own: the state is reset neither
    a token early nor a token late.
    """
    scan_calls.gives_each_document_what_it_gets_alone(stack, case)


BOUNDED = {  # factor on keys and values, largest element of the initial state
    "large-inputs": (30.0, 0.5),
    "a-large-state": (1.0, 5.0),
}


@contract("BLK-05d", asks=("block_weights", "run_block"), cases=BOUNDED, source="arXiv 2603.14360 §3: a convex mean")
def the_state_stays_in_its_bound(stack: Blocks, gain: float, start: float) -> None:
    """No element of R's state exceeds the larger of 1 and the largest initial element, whatever the input."""
    case = ScanCase(
        block="m2rnn", lengths=((24,), (11, 13)), state=True, weights={"mixer.dt_bias": 0.0, "mixer.A_log": 0.0}
    )
    inputs = drawn_inputs(stack, case)
    weights = inputs.weights | {name: gain * inputs.weights[name] for name in ("mixer.wk.weight", "mixer.wv.weight")}
    first = inputs.state["h"]
    state = {"h": first * (start / first.abs().max())}
    got = numerics.tensor(run(stack, case, replace(inputs, weights=weights, state=state)).state["h"])
    bound, largest = max(1.0, start), float(got.abs().max())
    assert largest <= bound, f"an element of the state is {largest:.3f}, larger than {bound:.3f}"


FORGETS = {  # A_log
    "keeps-everything": -60.0,
    "keeps-nothing": 20.0,
}


@contract("BLK-05e", asks=("block_weights", "run_block"), cases=FORGETS, source="arXiv 2603.14360 §3: limits of f")
def the_forget_gate_has_its_limits(stack: Blocks, a_log: float) -> None:
    """With forget gate f = 1 the state of R stays as given; with f = 0 and W = 0 each output depends only on its own
    token.
    """
    weights = {"mixer.A_log": a_log, "mixer.W": 0.0, "mixer.dt_bias": 0.5}
    case = ScanCase(block="m2rnn", lengths=((12,), (12,)), state=a_log < 0, weights=weights)
    inputs = drawn_inputs(stack, case)
    one = run(stack, case, inputs, backward=False)
    if a_log < 0:
        words = numerics.difference("the state after 12 tokens", one.state["h"], inputs.state["h"], FLOAT64)
        assert not words, f"{words}: it should be frozen"
    else:
        order = torch.arange(case.tokens - 1, -1, -1)
        two = run(stack, case, replace(inputs, x=inputs.x[:, order]), backward=False)
        words = numerics.difference("y of the reversed sequence", numerics.tensor(two.y)[:, order], one.y, FLOAT64)
        assert not words, f"{words}: each token should see only itself"


ODD = {"packed": ((3, 16), (10, 9))}


@contract("BLK-05f", asks=("block_weights", "run_block"), cases=ODD, source="arXiv 2603.14360 §3: tanh is odd")
def turned_keys_turn_the_output(stack: Blocks, *lengths: tuple[int, ...]) -> None:
    """Negating k negates the output of R, given an empty initial state and D = 0, because tanh and the read are odd."""
    case = ScanCase(block="m2rnn", lengths=lengths, weights={"mixer.D": 0.0})
    inputs = drawn_inputs(stack, case)
    wk = inputs.weights["mixer.wk.weight"]
    turned = replace(inputs, weights=inputs.weights | {"mixer.wk.weight": -wk})
    one, two = (numerics.tensor(run(stack, case, each, backward=False).y) for each in (inputs, turned))
    words = numerics.difference("y with -k", two, -one, FLOAT64)
    assert not words, words


# Neither of these is a bfloat16 number: -4.011 rounds to -4, and 1.0078 to 1.
FADING = {"fifty-tokens": ({"mixer.A_log": 1.0078, "mixer.dt_bias": -4.011, "mixer.W": 0.0}, 50)}


@contract("BLK-05g", asks=("block_weights", "run_block"), cases=FADING, source="arXiv 2603.14360; cppmega m2rnn")
def the_state_of_r_is_float32(stack: Blocks, weights: dict[str, float], tokens: int) -> None:
    """Under bfloat16 activations R keeps its state in float32 and computes the state's decay in float32.

    With zero inputs and W = 0, the state after 50 tokens is h · f^50; no activation takes part. In bfloat16 the error
    of this nonlinear recurrence grows with the sequence, from 0.5 % to 13 % over 1024 tokens.
    """
    case = ScanCase(block="m2rnn", lengths=((tokens,), (tokens,)), dtype="float32", state=True, weights=weights)
    inputs = drawn_inputs(stack, case)
    inputs = replace(inputs, x=torch.zeros_like(inputs.x))
    zero = numerics.array(inputs.x.to(torch.bfloat16))
    found = stack.run_block(replace(scan_calls.call(case, inputs, backward=False), x=zero)).state["h"]
    assert found.dtype == "float32", f"the state is {found.dtype} under bfloat16 activations, expected float32"
    rate = math.exp(weights["mixer.A_log"]) * math.log1p(math.exp(weights["mixer.dt_bias"]))
    want = inputs.state["h"] * math.exp(-tokens * rate)
    words = numerics.difference("the state after 50 empty tokens", found, want, FLOAT32_SCAN)
    assert not words, words


def _shapes(heads: int, width: int, state: int, hidden: int) -> dict[str, tuple[int, ...]]:
    rows = {"wg": heads * width, "wv": heads * width, "wq": heads * state, "wk": heads * state, "wf": heads}
    return {
        "norm.weight": (hidden,), **{f"mixer.{name}.weight": (size, hidden) for name, size in rows.items()},
        **{f"mixer.{name}": (heads,) for name in ("A_log", "D", "dt_bias")}, "mixer.W": (heads, width, width),
        "mixer.out_norm.weight": (heads * width,), "mixer.wo.weight": (hidden, heads * width),
    }  # fmt: skip


TENSORS = {
    "float32": (SMALL, _shapes(4, 8, 16, 24)),
    "bf16-three-groups": (replace(THREE_GROUPS, dtype="bf16"), _shapes(6, 4, 8, 24)),
}


@contract("BLK-05h", asks="block_weights", cases=TENSORS, source="arXiv 2603.14360; spec/blocks")
def r_holds_these_tensors(stack: Blocks, recipe: Any, expected: dict[str, tuple[int, ...]]) -> None:
    """R holds exactly the tensors of its definition, and D, dt_bias and A_log are float32 even in a bf16 recipe."""
    held = stack.block_weights(recipe, R_LAYER, "nemo_native")
    scan_calls.assert_weights(held, expected, ("A_log", "D", "dt_bias"), recipe.dtype)


BOTH = {"packed-with-state": ScanCase(block="m2rnn", lengths=((2, 9), (11,)), state=True)}


@contract("BLK-05i", asks=("block_weights", "run_block"), cases=BOTH, source="hybrid: R in both modes")
def r_is_the_same_in_both_modes(stack: Blocks, case: ScanCase) -> None:
    """The mixer of R gives bit-identical outputs and gradients in both modes, nemo_native and author_dp."""
    asked = scan_calls.call(case, drawn_inputs(stack, case))
    one, two = (stack.run_block(replace(asked, mode=mode)) for mode in ("nemo_native", "author_dp"))
    words = numerics.difference("y in author_dp", two.y, one.y, EXACT)
    words = words or numerics.differences("the gradient in author_dp of", two.gradients, one.gradients, EXACT)
    assert not words, words
