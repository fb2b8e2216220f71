"""What a block computes does not depend on how its input and its upstream gradient lie in memory."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.device_calls import BLOCKS, WIDE, BlockCase, call_of
from contracts.law._support.recipes import A_LAYER, SMALL_MLA
from contracts.spec import FLOAT64, FLOAT64_SCAN, Blocks, NotOffered

ROWS = ((13,), (13,), (13,))
STRIDED = {
    name: BlockCase(recipe=recipe, layer=layer, mode=mode, device="cpu", dtype="float64", lengths=ROWS)
    for name, (recipe, layer, mode) in {
        **BLOCKS, "latent-attention": (replace(WIDE, mla=SMALL_MLA.mla), A_LAYER, "nemo_native")
    }.items()
}  # fmt: skip


@contract("BLK-09a", asks=("block_weights", "run_block"), cases=STRIDED, source="SP-06; F21")
def a_block_reads_memory_in_any_order(stack: Blocks, asked: BlockCase) -> None:
    """A block has the same output and gradients whether its input and its upstream gradient are contiguous in memory or
    transposed.

    Autograd hands over gradients with the strides that the operations after a block left: a transposition, a slice, an
    expansion. A backward pass written by hand that takes a pointer and a length reads the elements in another order.
    """
    call = call_of(stack, asked)
    want, got = stack.run_block(call), stack.run_block(replace(call, strided=True))
    if not got.strided:
        raise NotOffered("its adapter lays every tensor row by row", "adapter")
    tolerance = FLOAT64_SCAN if asked.family in "MR" else FLOAT64
    words = numerics.difference("y", got.y, want.y, tolerance)
    words = words or numerics.gradient_differences("gradient", got.gradients, want.gradients, tolerance)
    assert not words, f"with its first axis fastest in memory: {words}"
