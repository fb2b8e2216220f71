"""Experts that differ from the reference's and keep the law: what the real Megatron-Core taught it.

A promise that one of these would break is over-strict. Each was found by putting Megatron-Core under the law.
"""

from dataclasses import replace

import pytest
from torch import Tensor

from contracts.contract import LAW
from contracts.court.judge import judge
from contracts.law.moe import balance_losses, capacity, experts
from contracts.spec import BlockCall, BlockRun
from contracts.stacks.reference.model.blocks import Router, Routing
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.stack import Reference


class _ByScore(Router):
    """The load in the balance loss is counted by the scores without the bias, as arXiv 2412.19437, eq. 18 has it."""

    def forward(self, x_BTD: Tensor) -> Routing:
        routing = super().forward(x_BTD)
        logits_BTE = self.logits(x_BTD)
        scores_BTE = self.scores(logits_BTE)
        if self.moe.groups is not None:
            scores_BTE = self.of_best_groups(scores_BTE, *self.moe.groups)
        unbiased_BTK = scores_BTE.topk(self.moe.top_k, dim=-1).indices
        aux = self.balance_loss(self.probabilities(logits_BTE), unbiased_BTK)
        return routing._replace(losses=routing.losses | {"aux": aux})


class BalancesByScores(Reference):
    def parts(self) -> Parts:
        return replace(super().parts(), router=_ByScore)


class TellsNoLossWithoutWeight(Reference):
    """A loss that the recipe gives no weight is not computed."""

    def run_block(self, call: BlockCall) -> BlockRun:
        run, moe = super().run_block(call), call.recipe.moe
        weights = {"aux": moe.aux_loss, "z": moe.z_loss}
        return replace(run, losses={name: each for name, each in run.losses.items() if weights[name]})


TABLES = {
    "MOE-02b": experts.DRAWN, "MOE-05a": balance_losses.AUX, "MOE-05c": balance_losses.LEARNING,
    "MOE-08b": capacity.FULL,
}  # fmt: skip
ITEMS = [(id, case) for id, table in TABLES.items() for case in table]


@pytest.mark.parametrize(("id", "case"), ITEMS)
def test_a_stack_that_balances_by_its_scores_only_holds(id: str, case: str) -> None:
    result = judge(LAW.contracts[id], case, BalancesByScores())
    assert result.outcome == "holds", result.words


@pytest.mark.parametrize("case", balance_losses.LEARNING)
def test_a_loss_without_weight_need_not_be_reported(case: str) -> None:
    result = judge(LAW.contracts["MOE-05c"], case, TellsNoLossWithoutWeight())
    assert result.outcome == "holds", result.words
