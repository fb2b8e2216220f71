"""Causality of every block, and the state that a scan hands on, on a CPU and on a GPU, in both dtypes.

Only one token gets an upstream gradient. It depends on the tokens where the gradient with respect to x is not zero. The
zeros are exact on every device, so one element reveals a kernel that masks with small numbers or reads a tile too far.
"""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.device_calls import BlockCase, call_of, cases_on
from contracts.spec import FLOAT32_SCAN, Blocks


def _in_both(device: str) -> dict[str, BlockCase]:
    """Every block in both dtypes; also attention without documents, where a fused kernel may run."""
    found = {f"{name}-bfloat16": asked for name, asked in cases_on(device).items()}
    found |= {f"{name}-float32": replace(asked, dtype="float32") for name, asked in cases_on(device).items()}
    whole = {
        f"{name}-whole": replace(asked, lengths=((13,), (13,))) for name, asked in cases_on(device, "attention").items()
    }
    return found | whole


@contract("BLK-01f", asks=("block_weights", "run_block"), cases=_in_both("cpu"), source="naming; F06")
@contract("BLK-01g", asks=("block_weights", "run_block"), cases=_in_both("cuda"), source="naming; F06", tier="gpu")
def a_token_reads_its_own_past_alone(stack: Blocks, asked: BlockCase) -> None:
    """A token depends on itself and on the earlier tokens of its document only: its gradient with respect to every
    other token of the batch is exactly zero, and with respect to itself it is not.

    A test that perturbs tokens and compares rounded outputs misses any leak smaller than rounding.
    """
    import torch

    numerics, call = instruments.numerics, call_of(stack, asked)
    read = asked.lengths[0][0] + 3 if len(asked.lengths[0]) > 1 else 6  # the fourth token of a later document
    assert call.dy is not None
    dy_BTD = numerics.tensor(call.dy)
    one_BTD = torch.zeros_like(dy_BTD)
    one_BTD[0, read] = dy_BTD[0, read]
    run = stack.run_block(replace(call, dy=numerics.array(one_BTD)))
    reached = numerics.tensor(run.gradients["x"]).abs().amax(-1)
    assert bool(reached.isfinite().all()), "the gradient by x is not finite"
    assert float(reached[0, read]) > 0, f"token {read} does not depend on itself"
    begin = asked.lengths[0][0] if len(asked.lengths[0]) > 1 else 0
    outside = {"another row": reached[1:], "a token after it": reached[0, read + 1 :],
               "another document": reached[0, :begin]}  # fmt: skip
    for what, part in outside.items():
        assert not bool(part.any()), f"token {read} of row 0 reads {what}: gradient {float(part.max()):.1e}"


HALVES = {name: replace(asked, dtype="float32", lengths=((19,), (19,))) for name, asked in
          cases_on("cpu", "mamba2", "mamba3", "recurrent").items()}  # fmt: skip
HALVES_ON_GPU = {name: replace(asked, device="cuda") for name, asked in HALVES.items()}


@contract("BLK-04r", asks=("block_weights", "run_block"), cases=HALVES, source="naming; hub")
@contract("BLK-04s", asks=("block_weights", "run_block"), cases=HALVES_ON_GPU, source="naming; hub", tier="gpu")
def two_halves_are_the_whole_on_a_device(stack: Blocks, asked: BlockCase) -> None:
    """In float32 a scan over eight tokens, continued over eleven from the returned state, equals one scan over all
    nineteen, in chunks of five or in one.

    A kernel may return its state in any dtype. A single call does not show it.
    """
    numerics, call = instruments.numerics, replace(call_of(stack, asked), dy=None)
    whole = stack.run_block(call)
    x_BTD = numerics.tensor(call.x)
    first = stack.run_block(replace(call, x=numerics.array(x_BTD[:, :8])))
    second = stack.run_block(replace(call, x=numerics.array(x_BTD[:, 8:]), state=first.state, chunk=None))
    y_BTD = numerics.tensor(whole.y)
    words = numerics.difference("y of the first half", first.y, y_BTD[:, :8], FLOAT32_SCAN)
    words = words or numerics.difference("y of the second half", second.y, y_BTD[:, 8:], FLOAT32_SCAN)
    carried = {name: each for name, each in second.state.items() if name != "angle"}  # known modulo 2π
    wanted = {name: each for name, each in whole.state.items() if name != "angle"}
    words = words or numerics.differences("state", carried, wanted, FLOAT32_SCAN)
    assert not words, words
