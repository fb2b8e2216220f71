"""A model that fits every card, and the stack that the checks on step memory ask."""

from dataclasses import replace
from typing import Protocol

from contracts.law._support.recipes import SMALL
from contracts.spec import Batch, Devices, Lane, Launch, Mamba, Moe, Recipe
from contracts.spec.capacity import Capacity


class Stack(Capacity, Devices, Protocol):
    """What these checks ask of a stack."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        """As in `spec.stack`."""
        ...


LITTLE = replace(
    SMALL, name="little", pattern="AEME", depth=6, hidden=96, ffn_hidden=200, vocab=512,
    moe=Moe(experts=12, top_k=3, expert_hidden=40, shared_hidden=56),
)  # fmt: skip


ONE_CARD = replace(
    LITTLE, name="one-card", hidden=1024, ffn_hidden=2816, heads=16, kv_groups=4, depth=12, seq_length=1024, vocab=8192,
    moe=Moe(experts=16, top_k=4, expert_hidden=512, shared_hidden=1024), batch=Batch(micro=4, total=4),
    mamba=Mamba(heads=32, head_dim=64, state=64, groups=8), hbm_gb=80,
)  # fmt: skip
