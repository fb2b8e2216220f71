"""Routers that take padding for text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import MoE, Router
from contracts.stacks.reference.stack import Reference


@mutant(of="MOE-09a", case="softmax-balance", says="the loss aux differs")
class IgnoresThePadding(Reference):
    """The mask ends at the attention, and the router never hears of it."""

    def run_block(self, call: BlockCall) -> BlockRun:
        return super().run_block(replace(call, padding=None))


class _DividesByPositions(Router):
    def without_padding(self, logits_BTE: Tensor, experts_BTK: Tensor, token_BT: Tensor) -> Any:
        counts, losses = super().without_padding(logits_BTE, experts_BTK, token_BT)
        return counts, {**losses, "z": losses["z"] * token_BT.sum() / token_BT.numel()}


@mutant(of="MOE-09a", case="softmax-z", says="the loss z differs")
class DividesZByPositions(Exchanged):
    """Padding adds nothing to the z loss, and the sum is divided by all positions."""

    exchange = {"router": _DividesByPositions}


class _CountsPadding(Router):
    def without_padding(self, logits_BTE: Tensor, experts_BTK: Tensor, token_BT: Tensor) -> Any:
        _, losses = super().without_padding(logits_BTE, experts_BTK, token_BT)
        return self.count(experts_BTK), losses


@mutant(of="MOE-09a", case="selection-bias", says="the counts are")
class MovesTheBiasByPadding(Exchanged):
    """Losses leave padding out, and the counts that move the bias do not."""

    exchange = {"router": _CountsPadding}


class _MasksTokens(Router):
    def without_padding(self, logits_BTE: Tensor, experts_BTK: Tensor, token_BT: Tensor) -> Any:
        return super().without_padding(logits_BTE, experts_BTK, ~token_BT)


@mutant(of="MOE-09a", case="sigmoid-z", says="the loss z differs")
class TakesTheMaskTheWrongWay(Exchanged):
    """True means padding in one place and a token in the other: only padding counts."""

    exchange = {"router": _MasksTokens}


class _WeighsRowsByTokens(Router):
    def without_padding(self, logits_BTE: Tensor, experts_BTK: Tensor, token_BT: Tensor) -> Any:
        counts, losses = super().without_padding(logits_BTE, experts_BTK, token_BT)
        parts = [super(_WeighsRowsByTokens, self).without_padding(*(each[row : row + 1] for each in
                 (logits_BTE, experts_BTK, token_BT)))[1]["aux"] * token_BT[row].sum()
                 for row in range(len(token_BT))]  # fmt: skip
        return counts, {**losses, "aux": torch.stack(parts).sum() / token_BT.sum()}


@mutant(of="MOE-09a", case="sigmoid-balance", says="the loss aux differs")
class WeighsRowsByTheirTokens(Exchanged):
    """A row with few tokens weighs less in a balance loss that is a mean over sequences."""

    exchange = {"router": _WeighsRowsByTokens}


class _GivesSlots(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return super().forward(x_BTD, packing._replace(padding_BT=None), state)


@mutant(of="MOE-09b", case="a-row-of-padding", says="loses expert")
class GivesSlotsToPadding(Exchanged):
    """A row of padding fills the experts before the first token of the next row."""

    exchange = {"moe": _GivesSlots}


@mutant(of="MOE-09b", case="half-a-share", says="keeps expert")
class DeclaresSlotsOfPadding(Reference):
    """Declares that padding takes slots as tokens do, and gives it none."""

    conventions = {"padding-slots": "as-others"}
