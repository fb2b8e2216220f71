"""Routers that take padding for text."""

from dataclasses import replace

import torch

from contracts.law._bugs.numeric import MoE, Reference, Router, broken, with_attributes


@broken(Reference, "run_block", "MOE-09a[softmax-balance]: the loss aux differs")
def ignores_the_padding(run_block, self, call):
    """The mask ends at the attention, and the router never hears of it."""
    return run_block(self, replace(call, padding=None))


@broken(Router, "without_padding", "MOE-09a[softmax-z]: the loss z differs")
def divides_z_by_positions(without_padding, self, logits_BTE, experts_BTK, token_BT):
    """Padding adds nothing to the z loss, and the sum is divided by all positions."""
    counts, losses = without_padding(self, logits_BTE, experts_BTK, token_BT)
    return counts, {**losses, "z": losses["z"] * token_BT.sum() / token_BT.numel()}


@broken(Router, "without_padding", "MOE-09a[selection-bias]: the counts are")
def moves_the_bias_by_padding(without_padding, self, logits_BTE, experts_BTK, token_BT):
    """Losses leave padding out, and the counts that move the bias do not."""
    _, losses = without_padding(self, logits_BTE, experts_BTK, token_BT)
    return self.count(experts_BTK), losses


@broken(Router, "without_padding", "MOE-09a[sigmoid-z]: the loss z differs")
def takes_the_mask_the_wrong_way(without_padding, self, logits_BTE, experts_BTK, token_BT):
    """True means padding in one place and a token in the other: only padding counts."""
    return without_padding(self, logits_BTE, experts_BTK, ~token_BT)


@broken(Router, "without_padding", "MOE-09a[sigmoid-balance]: the loss aux differs")
def weighs_rows_by_their_tokens(without_padding, self, logits_BTE, experts_BTK, token_BT):
    """A row with few tokens weighs less in a balance loss that is a mean over sequences."""
    counts, losses = without_padding(self, logits_BTE, experts_BTK, token_BT)
    rows = zip(logits_BTE.split(1), experts_BTK.split(1), token_BT.split(1), strict=True)
    parts = [without_padding(self, *row)[1]["aux"] * row[2].sum() for row in rows]
    return counts, {**losses, "aux": torch.stack(parts).sum() / token_BT.sum()}


@broken(Router, "without_padding", "MOE-09a[row-of-padding-balance]: the loss aux differs")
def counts_rows_of_padding(without_padding, self, logits_BTE, experts_BTK, token_BT):
    """The mean over sequences divides by the rows of the batch, also by those that hold no token."""
    counts, losses = without_padding(self, logits_BTE, experts_BTK, token_BT)
    return counts, {**losses, "aux": losses["aux"] * token_BT.any(1).sum() / len(token_BT)}


@broken(MoE, "forward", "MOE-09b[a-row-of-padding]: loses expert", "MOE-09b[by-gate]: loses expert")
def gives_slots_to_padding(forward, self, x_BTD, packing, state):
    """A row of padding fills the experts before the first token of the next row."""
    return forward(self, x_BTD, packing._replace(padding_BT=None), state)


with_attributes(
    "DeclaresSlotsOfPadding",
    "Declares that padding takes slots as tokens do, and gives it none.",
    "MOE-09b[half-a-share]: keeps expert",
    conventions={"padding-slots": "as-others"},
)


@broken(
    MoE,
    "forward",
    "MOE-09c[balance-loss]: given documents beside padding, the loss aux differs",
    "MOE-09c[selection-bias]: given documents beside padding, the loss aux differs",
)
def packs_instead_of_padding(forward, self, x_BTD, packing, state):
    """Packed rows are full, so that whoever has documents is thought to have no padding."""
    packed = bool((packing.documents_BT != packing.documents_BT[:, :1]).any())
    return forward(self, x_BTD, packing._replace(padding_BT=None) if packed else packing, state)
