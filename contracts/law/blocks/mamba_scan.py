"""M as a scan: the state between chunks and between calls, and that no later token and no other document has an effect.

The contracts are the same for Mamba-2 and Mamba-3. The length of 37 tokens is no multiple of a chunk.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import scan_calls
from contracts.law._support.scan_calls import BESIDE_ATTENTION, PACKED, ScanCase, drawn_inputs, run
from contracts.spec import Blocks

CHUNKS = {
    "one-token": (ScanCase(state=True), 1),
    "five": (ScanCase(lengths=PACKED, state=True), 5),
    "sixteen": (ScanCase(state=True), 16),
    "more-than-there-are": (ScanCase(lengths=PACKED), 64),
    "mamba3-one-token": (ScanCase(block="mamba3", lengths=PACKED, state=True), 1),
    "mamba3-five": (ScanCase(block="mamba3", state=True), 5),
    "mamba3-sixteen": (ScanCase(block="mamba3", lengths=PACKED, state=True), 16),
}


@contract("BLK-04b", asks=("block_weights", "run_block"), cases=CHUNKS, source="naming hub; arXiv 2405.21060 §6")
def the_chunk_changes_no_number(stack: Blocks, case: ScanCase, chunk: int) -> None:
    """Output, state and gradients of M do not depend on the chunk size, whether or not it divides the sequence."""
    inputs = drawn_inputs(stack, case)
    got, want = (run(stack, replace(case, chunk=each), inputs) for each in (chunk, 13))
    tensors = numerics.tensors
    scan_calls.assert_run_equals(got, tensors({"y": want.y})["y"], tensors(want.state), tensors(want.gradients), case)


HALVES = {
    "inside-a-chunk": (ScanCase(chunk=8), 20),
    "at-the-edge-of-a-chunk": (ScanCase(state=True, chunk=8), 16),
    "after-one-token": (ScanCase(state=True, chunk=8), 1),
    "inside-a-document": (ScanCase(lengths=((9, 28), (17, 20)), chunk=8), 19),
    "mamba3-inside-a-chunk": (ScanCase(block="mamba3", chunk=8), 20),
    "mamba3-after-one-token": (ScanCase(block="mamba3", state=True, chunk=8), 1),
    "mamba3-inside-a-document": (ScanCase(block="mamba3", lengths=((9, 28), (17, 20)), chunk=8), 19),
}


@contract("BLK-04c", asks=("block_weights", "run_block"), cases=HALVES, source="naming hub; mamba-ssm state passing")
def m_passes_its_state(stack: Blocks, case: ScanCase, at: int) -> None:
    """M over a sequence in two calls, the second from the state that the first returns, equals one call.

    The state of Mamba-2 is the scan state and the last three inputs of each convolution; that of Mamba-3 is the scan
    state, the angle, and the last k and v. Leaving out any of them is a separate bug.
    """
    scan_calls.passes_its_state(stack, case, at)


CAUSAL = {
    "mamba2": (ScanCase(chunk=8), 21),
    "mamba2-packed": (ScanCase(lengths=PACKED, chunk=16), 23),
    "mamba3": (ScanCase(block="mamba3", chunk=8), 21),
    "mamba3-packed": (ScanCase(block="mamba3", lengths=PACKED, chunk=16), 23),
    "beside-attention": (BESIDE_ATTENTION, 23),
}


@contract("BLK-01c", asks=("block_weights", "run_block"), cases=CAUSAL, source="naming; arXiv 2405.21060")
def m_sees_nothing_of_the_future(stack: Blocks, case: ScanCase, at: int) -> None:
    """In M, also beside attention, a token changes no earlier output, and a loss on earlier ones gives it no gradient:
    both are exactly 0.

    A loss on the last token does give the first token a gradient.
    """
    scan_calls.sees_nothing_of_the_future(stack, case, at)


APART = {
    "mamba2": ScanCase(lengths=PACKED, chunk=8),
    "mamba2-one-chunk": ScanCase(lengths=PACKED, chunk=64),
    "mamba3": ScanCase(block="mamba3", lengths=PACKED, chunk=8),
    "mamba3-one-chunk": ScanCase(block="mamba3", lengths=PACKED, chunk=64),
    "beside-attention": BESIDE_ATTENTION,
}


@contract("BLK-02c", asks=("block_weights", "run_block"), cases=APART, source="F06; mamba-ssm seq_idx")
def m_keeps_documents_apart(stack: Blocks, case: ScanCase) -> None:
    """In M, also beside attention, a packed document has exactly no effect on another one, neither through the scan
    state nor through the convolution, in outputs and gradients.
    """
    scan_calls.keeps_documents_apart(stack, case)


ALONE = {
    "mamba2": ScanCase(lengths=PACKED, chunk=8),
    "mamba2-one-chunk": ScanCase(lengths=PACKED, chunk=64),
    "mamba3": ScanCase(block="mamba3", lengths=PACKED, chunk=8),
    "beside-attention": BESIDE_ATTENTION,
}


@contract("BLK-04d", asks=("block_weights", "run_block"), cases=ALONE, source="F06; mamba-ssm")
def m_gives_a_packed_document_what_it_gets_alone(stack: Blocks, case: ScanCase) -> None:
    """In M, also beside attention, a packed document has the output, gradient and state of a row of its own: the
    state is reset neither a token early nor a token late.
    """
    scan_calls.gives_each_document_what_it_gets_alone(stack, case)
