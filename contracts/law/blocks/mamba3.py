"""M as Mamba-3: the trapezoidal step, the rotated state, the groups of B and C.

`mamba_scan` tests what Mamba-3 shares with Mamba-2. Single input, single output; half of the state rotates.
"""

import math
from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support import scan_calls
from contracts.law._support.late import torch
from contracts.law._support.recipes import M_LAYER, SMALL
from contracts.law._support.scan_calls import ScanCase, drawn_inputs, run
from contracts.spec import FLOAT64, Blocks, Mamba

THREE_GROUPS = replace(SMALL, name="three-groups", mamba=Mamba(heads=6, head_dim=4, state=8, groups=3))

DEFINED = {
    "plain": ScanCase(block="mamba3", lengths=((19,), (19,)), chunk=8),
    "packed-with-state": ScanCase(block="mamba3", lengths=((2, 9, 1, 7), (15, 4)), state=True, chunk=8),
    "three-groups-of-two": ScanCase(block="mamba3", recipe=THREE_GROUPS, lengths=((7,), (7,), (7,)), chunk=4),
    "float32": ScanCase(block="mamba3", lengths=((13, 8), (21,)), dtype="float32", chunk=8),
    "one-token": ScanCase(block="mamba3", lengths=((1,), (1,)), state=True),
    "a-large-epsilon": ScanCase(block="mamba3", recipe=replace(SMALL, norm_eps=0.3), lengths=((7,), (7,))),
    "saturated": ScanCase(block="mamba3", lengths=((5,), (2, 3)), loud=("mixer.wz.weight", "mixer.wtrap.weight")),
    "slowest-decay": ScanCase(block="mamba3", lengths=((9,), (4, 5)), loud=("mixer.wa.weight",)),
}


@contract("BLK-04m", asks=("block_weights", "run_block"), cases=DEFINED, source="arXiv 2603.15569 §3; mamba-ssm 2.3.2")
def mamba3_is_its_recurrence(stack: Blocks, case: ScanCase) -> None:
    """Mamba-3 has the output, last state and every gradient of its recurrence, including that of the initial state.

    The recurrence is s_t = a_t s_{t-1} + (1 - λ_t) dt_t a_t v_{t-1} k_{t-1}ᵀ + λ_t dt_t v_t k_tᵀ and
    y_t = s_t q_t + D v_t, with a_t = exp(dt_t A_t) and λ = sigmoid(trap). k and q are B and C, normed, biased and
    rotated by the running sum of π tanh(angle) dt. The block's output is y · silu(z).
    """
    scan_calls.equals_its_definition(stack, case, oracles.mamba.mamba3)


STEPS = {
    "long-and-short": [-50.0, 0.0, 21.0, 100.0],
    "below-the-switch": [6.5, 8.0, 9.5, 11.0],
}  # dt_bias of four heads; wdt is 0, and nothing rotates


@contract("BLK-04u", asks=("block_weights", "run_block"), cases=STEPS, source="mamba-ssm: softplus over dt > 20")
def the_step_of_mamba3_is_softplus_everywhere(stack: Blocks, biases: list[float]) -> None:
    """The time step of Mamba-3 is the softplus of its input, in float32, from -50 to 100, with finite gradients.

    A literal log(1 + exp(x)) is infinite from 89 on, and its gradient is NaN. Angles are proportional to the step; the
    digits that a gradient loses to them are no part of this.
    """
    weights = {"mixer.dt_bias": biases, "mixer.wdt.weight": 0.0, "mixer.wangle.weight": 0.0}
    case = ScanCase(block="mamba3", lengths=((7,), (4, 3)), dtype="float32", weights=weights)
    inputs = drawn_inputs(stack, case)
    got = run(stack, case, inputs)
    want = oracles.mamba.mamba3(case.recipe, inputs.weights, inputs.x, inputs.documents, {})
    words = numerics.difference("y", got.y, want.y_BTD, case.tolerances[0])
    assert not words, words
    lost = [name for name, each in numerics.tensors(got.gradients).items() if not bool(each.isfinite().all())]
    assert not lost, f"the gradient of {', '.join(lost)} is not finite"


STEADY = 40.0  # sigmoid of 40 times a normed element of 1 or more rounds to 1 in float64, of minus that to below 1e-17
ENDS = {
    "all-at-the-end": (1.0, ((9,), (4, 5))),
    "all-at-the-beginning": (-1.0, ((9,), (4, 5))),
}


@contract("BLK-04n", asks=("block_weights", "run_block"), cases=ENDS, source="arXiv 2603.15569 §3.1; mamba-ssm Trap")
def the_step_is_shared_between_its_ends(stack: Blocks, sign: float, lengths: scan_calls.Lengths) -> None:
    """sigmoid(trap) is the weight of the current token in the trapezoidal step of Mamba-3: at 1 the previous token adds
    nothing, at 0 the current token adds nothing.

    At 1 the initial k and v change no output. At 0, with D = 0, the first token of a document has output 0. The kernel
    takes trap before its sigmoid, though its documentation says "in [0, 1]".
    """
    case = ScanCase(block="mamba3", lengths=lengths, state=sign > 0, weights={"mixer.D": 0.0})
    inputs = drawn_inputs(stack, case)
    x, wtrap = inputs.x.clone(), torch.zeros_like(inputs.weights["mixer.wtrap.weight"])
    x[..., 0] = 8.0  # one element that is large in every token; trap reads it
    wtrap[:, 0] = sign * STEADY
    norm = torch.ones_like(inputs.weights["norm.weight"])
    weights = inputs.weights | {"mixer.wtrap.weight": wtrap, "norm.weight": norm}
    inputs = replace(inputs, x=x, weights=weights)
    got = numerics.tensor(run(stack, case, inputs, backward=False).y)
    if sign > 0:
        empty = {name: each * (name not in ("k", "v")) for name, each in inputs.state.items()}
        want = run(stack, case, replace(inputs, state=empty), backward=False).y
        words = numerics.difference("y with the initial k and v set to 0", got, want, FLOAT64)
        assert not words, words
    else:
        first = torch.stack([got[0, 0], got[1, 0], got[1, 4]])
        rounding = FLOAT64.bound * numerics.typical_size(got)
        assert float(first.abs().max()) <= rounding, f"a first token gives {float(first.abs().max()):.3g}, not 0"
        assert float(got[0, 1].abs().max()) > rounding, "a second token gives 0 too"


TURNS = {
    "three-turns": (6 * math.pi, True),
    "any-angle-before-an-empty-state": (1.234, False),
}


@contract("BLK-04o", asks=("block_weights", "run_block"), cases=TURNS, source="arXiv 2603.15569 §3.2")
def only_the_turn_between_tokens_counts(stack: Blocks, angle: float, with_state: bool) -> None:
    """Adding whole turns to the initial angle changes no output of Mamba-3, and with an empty initial state no initial
    angle does.
    """
    case = ScanCase(block="mamba3", lengths=((9,), (9,)), state=True)
    inputs = drawn_inputs(stack, case)
    held = {name: each if with_state or name == "angle" else 0 * each for name, each in inputs.state.items()}
    one = run(stack, case, replace(inputs, state=held), backward=False)
    two = run(stack, case, replace(inputs, state=held | {"angle": held["angle"] + angle}), backward=False)
    words = numerics.difference(f"y with {angle:.3f} added to the initial angle", two.y, one.y, FLOAT64)
    assert not words, words


def _shapes(heads: int, width: int, groups: int, state: int, hidden: int) -> dict[str, tuple[int, ...]]:
    rows = {"wz": heads * width, "wx": heads * width, "wb": groups * state, "wc": groups * state, "wdt": heads,
            "wa": heads, "wtrap": heads, "wangle": state // 4}  # fmt: skip
    return {
        "norm.weight": (hidden,), **{f"mixer.{name}.weight": (size, hidden) for name, size in rows.items()},
        "mixer.b_norm.weight": (state,), "mixer.c_norm.weight": (state,), "mixer.b_bias": (heads, state),
        "mixer.c_bias": (heads, state), "mixer.D": (heads,), "mixer.dt_bias": (heads,),
        "mixer.wo.weight": (hidden, heads * width),
    }  # fmt: skip


TENSORS = {
    "float32": (SMALL, _shapes(4, 8, 2, 16, 24)),
    "bf16-three-groups": (replace(THREE_GROUPS, dtype="bf16"), _shapes(6, 4, 3, 8, 24)),
}


@contract("BLK-04p", asks="block_weights", cases=TENSORS, source="mamba-ssm 2.3.2")
def mamba3_holds_these_tensors(stack: Blocks, recipe: Any, expected: dict[str, tuple[int, ...]]) -> None:
    """Mamba-3 holds exactly the tensors of its definition, and D and dt_bias are float32 even in a bf16 recipe."""
    scan_calls.assert_weights(
        stack.block_weights(recipe, M_LAYER, "author_dp"), expected, ("D", "dt_bias"), recipe.dtype
    )


READ = {  # head, and the group of its B and C
    "first-of-the-second-group": (2, 1),
    "last-of-the-first-group": (1, 0),
    "last": (5, 2),
}


@contract("BLK-04q", asks=("block_weights", "run_block"), cases=READ, source="mamba-ssm: Mamba-3 with 1 < G < H")
def a_head_reads_its_group_and_itself(stack: Blocks, head: int, group: int) -> None:
    """In Mamba-3 head i of h reads group i // (h / g) of B and C and its own biases, and nothing of another head.

    With all of wo zero except one head's part, every other gradient is zero. mamba-ssm's backward kernel had no branch
    for more groups than 1 and fewer than heads.
    """
    case = ScanCase(block="mamba3", recipe=THREE_GROUPS, lengths=((11,), (6, 5)), chunk=4)
    inputs, width, size = drawn_inputs(stack, case), 4, 8
    wo = torch.zeros_like(inputs.weights["mixer.wo.weight"])
    read = slice(head * width, (head + 1) * width)
    wo[:, read] = inputs.weights["mixer.wo.weight"][:, read]
    got = run(stack, case, replace(inputs, weights=inputs.weights | {"mixer.wo.weight": wo}))
    sizes = {"wb.weight": (size, group), "wc.weight": (size, group), "wx.weight": (width, head),
             "wz.weight": (width, head), "wdt.weight": (1, head), "b_bias": (1, head)}  # fmt: skip
    for name, (rows, expected) in sizes.items():
        scan_calls.assert_reaches(got, name, rows, head, [expected])
