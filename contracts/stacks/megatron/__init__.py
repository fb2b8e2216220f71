"""The real Megatron-Core: its launch asked in a process of its own, its numbers in an interpreter that has it."""

from contracts.stacks.megatron.stack import VERSIONS, Megatron, installed

__all__ = ["VERSIONS", "Megatron", "installed"]
