"""Base of the Megatron-Core blocks: one layer on one rank, with weights under Megatron's names and ours."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from contracts.spec import BlockCall, BlockRun
from contracts.stacks.kit.versions import Misfit
from contracts.stacks.megatron.model import Plan, config_of
from contracts.stacks.megatron.weight_mapping import block_pieces, ours_of, theirs_of

THEIRS = "decoder.layers.0."
"""The prefix of a block's names, as in a model of only that layer."""


class Block(ABC):
    """One layer without what is not part of the block: the residual connection, the other half."""

    def __init__(self, plan: Plan, device: str = "cpu") -> None:
        self.plan = plan
        self.layer = self.build(config_of(plan)).to(device)
        self.table = {each.theirs: each for each in block_pieces(plan.recipe, plan.letters, THEIRS, "")}

    @abstractmethod
    def build(self, config: Any) -> Any:
        """Megatron's layer."""

    @abstractmethod
    def run(self, call: BlockCall) -> BlockRun:
        """Forward, and backward where the call has an upstream gradient."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors that have a counterpart among ours, by Megatron's name in a model."""

    def ours(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return ours_of(self.table, theirs)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        given, held = theirs_of(self.table, weights), self.tensors()
        if given.keys() != held.keys():
            raise Misfit(f"weights and model differ in {sorted(given.keys() ^ held.keys())}")
        with torch.no_grad():
            for name, each in held.items():
                each.copy_(given[name])


def gradient(tensor: Tensor) -> Tensor:
    """The gradient of a parameter; zeros if it got none."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
