"""What M holds and computes in float32, whatever the dtype of the recipe and of the activations."""

import math
from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import scan_calls
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import M_LAYER, SMALL
from contracts.law._support.scan_calls import ScanCase, drawn_inputs, last_state
from contracts.spec import FLOAT32_SCAN, Blocks, Mamba

THREE_GROUPS = replace(SMALL, name="three-groups", mamba=Mamba(heads=6, head_dim=4, state=8, groups=3))


def _shapes(recipe_heads: int, width: int, groups: int, state: int, hidden: int) -> dict[str, tuple[int, ...]]:
    inner, grouped = recipe_heads * width, groups * state
    convolutions = {f"mixer.conv_{name}": size for name, size in (("x", inner), ("b", grouped), ("c", grouped))}
    return {
        "norm.weight": (hidden,), "mixer.wz.weight": (inner, hidden), "mixer.wx.weight": (inner, hidden),
        "mixer.wb.weight": (grouped, hidden), "mixer.wc.weight": (grouped, hidden),
        "mixer.wdt.weight": (recipe_heads, hidden), "mixer.out_norm.weight": (inner,),
        "mixer.wo.weight": (hidden, inner), **{f"mixer.{name}": (recipe_heads,) for name in ("A_log", "D", "dt_bias")},
        **{f"{name}.weight": (size, 4) for name, size in convolutions.items()},
        **{f"{name}.bias": (size,) for name, size in convolutions.items()},
    }  # fmt: skip


TENSORS = {
    "float32": (SMALL, _shapes(4, 8, 2, 16, 24)),
    "bf16": (replace(SMALL, dtype="bf16"), _shapes(4, 8, 2, 16, 24)),
    "bf16-three-groups": (replace(THREE_GROUPS, dtype="bf16"), _shapes(6, 4, 3, 8, 24)),
}


@contract("BLK-04f", asks="block_weights", cases=TENSORS, source="naming hub; mamba-ssm _no_weight_decay")
def mamba2_holds_these_tensors(stack: Blocks, recipe: Any, expected: dict[str, tuple[int, ...]]) -> None:
    """Mamba-2 holds exactly the tensors of its definition, and D, dt_bias and A_log are float32 even in a bf16 recipe.

    A dt_bias near -5, rounded to bfloat16, shifts every time step of its head by 1.5 %.
    """
    held = stack.block_weights(recipe, M_LAYER, "nemo_native")
    scan_calls.assert_weights(held, expected, ("A_log", "D", "dt_bias"), recipe.dtype)


# Neither of these is a bfloat16 number: -4.011 rounds to -4, and 1.0078 to 1.
FADING = {
    "mamba2": ("mamba2", {"mixer.A_log": 1.0078, "mixer.dt_bias": -4.011}, 50 * math.exp(1.0078)),
    "mamba3": ("mamba3", {"mixer.dt_bias": -4.011}, 50 * math.log(2)),  # A of a zero input is -softplus(0)
}


@contract("BLK-04g", asks=("block_weights", "run_block"), cases=FADING, source="naming hub; mamba-ssm: A.float()")
def decay_is_computed_in_float32(stack: Blocks, block: str, weights: dict[str, float], rate_of_50: float) -> None:
    """Under bfloat16 activations M keeps its state in float32 and computes the state's decay in float32.

    With zero inputs and no convolution bias, the state after 50 tokens is s · exp(50 dt A) with dt = softplus(dt_bias).
    No activation takes part, so any rounding of dt_bias, A_log or the state shows in the fourth digit.
    """
    biases = {f"mixer.conv_{name}.bias": 0.0 for name in "xbc"} if block == "mamba2" else {}
    case = ScanCase(
        block=block, lengths=((50,), (50,)), dtype="float32", chunk=16, state=True, weights=weights | biases
    )
    inputs = drawn_inputs(stack, case)
    state = {name: each if name == "ssm" else torch.zeros_like(each) for name, each in inputs.state.items()}
    inputs = replace(inputs, x=torch.zeros_like(inputs.x), state=state)
    asked = scan_calls.call(case, inputs, backward=False)
    zero = numerics.array(inputs.x.to(torch.bfloat16))
    found = last_state(stack.run_block(replace(asked, x=zero)))["ssm"]
    assert found.dtype == "float32", f"the state is {found.dtype} under bfloat16 activations, expected float32"
    step = math.log1p(math.exp(weights["mixer.dt_bias"]))
    want: Tensor = state["ssm"] * math.exp(-rate_of_50 * step)
    words = numerics.difference("the state after 50 empty tokens", found, want, FLOAT32_SCAN)
    assert not words, words
