"""Causality of M: no later token and no other document has an effect.

The contracts are the same for Mamba-2 and Mamba-3. The length of 37 tokens is no multiple of a chunk.
"""

from contracts.contract import contract
from contracts.law._support import scan_calls
from contracts.law._support.scan_calls import PACKED, ScanCase
from contracts.spec import Blocks

CAUSAL = {
    "mamba2": (ScanCase(chunk=8), 21),
    "mamba2-packed": (ScanCase(lengths=PACKED, chunk=16), 23),
    "mamba3": (ScanCase(block="mamba3", chunk=8), 21),
    "mamba3-packed": (ScanCase(block="mamba3", lengths=PACKED, chunk=16), 23),
}


@contract("BLK-01c", asks=("block_weights", "run_block"), cases=CAUSAL, source="naming; arXiv 2405.21060")
def m_sees_nothing_of_the_future(stack: Blocks, case: ScanCase, at: int) -> None:
    """In M a token changes no earlier output, and a loss on earlier tokens gives it no gradient: both are exactly 0.

    A loss on the last token does give the first token a gradient.
    """
    scan_calls.sees_nothing_of_the_future(stack, case, at)


APART = {
    "mamba2": ScanCase(lengths=PACKED, chunk=8),
    "mamba2-one-chunk": ScanCase(lengths=PACKED, chunk=64),
    "mamba3": ScanCase(block="mamba3", lengths=PACKED, chunk=8),
    "mamba3-one-chunk": ScanCase(block="mamba3", lengths=PACKED, chunk=64),
}


@contract("BLK-02c", asks=("block_weights", "run_block"), cases=APART, source="F06; mamba-ssm seq_idx")
def m_keeps_documents_apart(stack: Blocks, case: ScanCase) -> None:
    """In M a packed document has exactly no effect on another one, neither through the scan state nor through the
    convolution, in outputs and gradients.
    """
    scan_calls.keeps_documents_apart(stack, case)


ALONE = {
    "mamba2": ScanCase(lengths=PACKED, chunk=8),
    "mamba2-one-chunk": ScanCase(lengths=PACKED, chunk=64),
    "mamba3": ScanCase(block="mamba3", lengths=PACKED, chunk=8),
}


@contract("BLK-04d", asks=("block_weights", "run_block"), cases=ALONE, source="F06; mamba-ssm")
def m_gives_a_packed_document_what_it_gets_alone(stack: Blocks, case: ScanCase) -> None:
    """In M a packed document has the same output, gradient and state as in a row of its own: the state is reset neither
    a token early nor a token late.
    """
    scan_calls.gives_each_document_what_it_gets_alone(stack, case)
