"""The real Megatron-Core: launch questions in a separate process, numbers in an interpreter that has it installed."""

from contracts.stacks.megatron.abilities import VERSIONS
from contracts.stacks.megatron.stack import Megatron, installed

__all__ = ["VERSIONS", "Megatron", "installed"]
