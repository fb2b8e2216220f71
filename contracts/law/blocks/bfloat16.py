"""Blocks in bfloat16 on a device, against their definitions in float64 on the same numbers
(instruments.half_precision).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.device_calls import BlockCase, call_of, cases_on
from contracts.spec import HALF_GRADIENT, HALF_OUTPUT, HALF_SCAN_GRADIENT, BlockCall, BlockRun, Blocks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HOST, GPU = cases_on("cpu"), cases_on("cuda")

# By block letter: gradients that are sums over all tokens whose terms cancel to a tenth. In bfloat16 they are too
# inaccurate to judge; BLK-05a judges them in float32.
CANCELLING = {"R": ("mixer.A_log", "mixer.D", "mixer.dt_bias")}


@contract("BLK-08c", asks=("block_weights", "run_block"), cases=HOST, source="notes of the kernels: tolerances")
@contract("BLK-08g", asks=("block_weights", "run_block"), cases=GPU, source="hub; naming", tier="gpu")
def a_block_in_bfloat16_is_as_near_as_its_storage_allows(stack: Blocks, asked: BlockCase) -> None:
    """In bfloat16 the error of a block's output is at most twice that of a control: the definition, with only its
    matrix products stored in bfloat16. The error of a gradient is at most three times the control's, four times for a
    scan.

    A fixed tolerance that is wide enough for the worst tensor hides faults in the others, and a percentile hides a lost
    token. Here each tensor's bound follows from its own sums, and the worst token is judged by itself.
    """
    call = call_of(stack, asked)
    held_to_its_definition(call, stack.run_block(call), asked)


def held_to_its_definition(call: BlockCall, run: BlockRun, asked: BlockCase) -> None:
    """Compare a block's output and gradients with the oracle, under the policy.

    Raises:
        AssertionError: with the tensor that is too far off.
    """
    import torch

    assert run.y.dtype == asked.dtype, f"activations are {asked.dtype}, and y is {run.y.dtype}"
    want, control = defined(call), defined(call, torch.bfloat16)
    policy = instruments.half_precision
    words = policy.excess_error("y", run.y, want.pop("y"), control.pop("y"), HALF_OUTPUT)
    assert not words, words
    gradients = dict(run.gradients)
    for name in CANCELLING.get(asked.family, ()):
        assert instruments.numerics.tensor(gradients.pop(name)).isfinite().all(), f"gradient of {name} is not finite"
        del want[name]
    rule = HALF_SCAN_GRADIENT if asked.family in "MR" else HALF_GRADIENT
    words = policy.named_excess_error("gradient of", gradients, want, control, rule)
    assert not words, words


def defined(call: BlockCall, stored: torch.dtype | None = None) -> dict[str, Tensor]:
    """`y` and the gradients of <y, dy> by name, from the oracle in float64, its products kept in dtype `stored`."""
    import contextlib

    import torch

    numerics = instruments.numerics
    weights = numerics.tensors(call.weights, torch.float64)
    leaves = {name: each.requires_grad_() for name, each in weights.items() if each.is_floating_point()}
    x_BTD = numerics.tensor(call.x, torch.float64).requires_grad_()
    routers = {(call.recipe.hidden, call.recipe.moe.experts)} if call.recipe.moe else set()
    rounding = (
        instruments.half_precision.RoundedProducts(stored, frozenset(routers)) if stored else contextlib.nullcontext()
    )
    with rounding:
        y_BTD = _through(call, weights, x_BTD)
        assert call.dy is not None
        objective = (y_BTD * numerics.tensor(call.dy, torch.float64)).sum()
        found = torch.autograd.grad(objective, [*leaves.values(), x_BTD])
    return {"y": y_BTD.detach()} | dict(zip([*leaves, "x"], found, strict=True))


def _through(call: BlockCall, weights: dict[str, Tensor], x_BTD: Tensor) -> Tensor:
    """The output of the oracle for the block of this call."""
    import torch

    oracles, recipe = instruments.oracles, call.recipe
    letter = recipe.pattern[call.layer % len(recipe.pattern)]
    documents = None if call.documents is None else instruments.numerics.tensor(call.documents)
    rows = list(range(len(x_BTD)))
    y_BTD: Tensor
    if letter == "A":
        numbers = [None if documents is None else documents[row] for row in rows]
        y_BTD = torch.stack([oracles.attention.grouped(recipe, weights, x_BTD[row], numbers[row]) for row in rows])
    elif letter == "E" and recipe.moe is None:
        y_BTD = torch.stack([oracles.mlp.dense(recipe, weights, x_BTD[row]) for row in rows])
    elif letter == "E":
        y_BTD = oracles.experts.block(recipe, weights, x_BTD).y_BTD
    else:
        block = oracles.recurrent.m2rnn if letter == "R" else getattr(
            oracles.mamba, "mamba2" if call.mode == "nemo_native" else "mamba3"
        )  # fmt: skip
        y_BTD = block(recipe, weights, x_BTD, documents).y_BTD
    return y_BTD
