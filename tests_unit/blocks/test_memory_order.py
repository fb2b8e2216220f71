"""Whoever lays every tensor row by row is not asked about memory in another order."""

from dataclasses import replace

import pytest

from contracts.law.blocks.memory_order import STRIDED, a_block_reads_memory_in_any_order
from contracts.spec import BlockCall, BlockRun, NotOffered
from contracts.stacks.reference.stack import Reference


class _RowByRow(Reference):
    def run_block(self, call: BlockCall) -> BlockRun:
        return super().run_block(replace(call, strided=False))


def test_an_adapter_that_makes_every_tensor_contiguous_is_caught() -> None:
    case = STRIDED["attention"]
    a_block_reads_memory_in_any_order(Reference(), case)
    with pytest.raises(NotOffered, match="row by row"):
        a_block_reads_memory_in_any_order(_RowByRow(), case)
