"""Experts whose routing depends on later tokens."""

from typing import Any, ClassVar

from torch import Tensor

from contracts.law._bugs.broken import broken, derived
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import MoE, Router


@broken(Router, "choose", "BLK-01b[dropless]: y before it differs")
def compares_tokens(choose, self, scores_BTE):
    """Router scores are centred over the sequence, so later tokens change the routing of earlier ones."""
    return choose(self, scores_BTE - scores_BTE.mean(1, keepdim=True))


@derived("BLK-01b[full]: y before it differs")
class GivesSlotsToTheLargestGates(MoE):
    """A full expert keeps the tokens with the largest gates, so a later token can take an earlier one's slot."""

    gates_NK: ClassVar[Any] = None

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        type(self).gates_NK = self.router(x_BTD).gates_BTK.detach().flatten(0, 1)
        return super().forward(x_BTD, packing, state)

    def drop(self, experts_BTK: Tensor) -> Tensor:
        if self.moe.capacity_factor is None:
            return super().drop(experts_BTK)
        order = type(self).gates_NK.amax(1).argsort(descending=True, stable=True)
        dropped = super().drop(experts_BTK.flatten(0, 1)[order].unsqueeze(0)).squeeze(0)
        return dropped[order.argsort()].view(experts_BTK.shape)


@broken(MoE, "drop", "BLK-01b[full-softmax]: y before it differs")
def keeps_the_last_tokens(drop, self, experts_BTK):
    """Slots are filled from the end of the batch."""
    return drop(self, experts_BTK.flip(0, 1)).flip(0, 1)
