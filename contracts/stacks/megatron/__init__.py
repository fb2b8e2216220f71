"""The real Megatron-Core: launch questions in a separate process, numbers in an interpreter that has it installed."""

from contracts.stacks.megatron.stack import VERSIONS, Megatron, installed

__all__ = ["VERSIONS", "Megatron", "installed"]
