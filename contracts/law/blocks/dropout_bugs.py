"""Layers that drop too much, too little, or the same elements over and over."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from contracts.law._bugs.numeric import Layer, Mamba3, Model, MtpModule, Trainer, broken


@broken(
    Layer, "drop", "BLK-11a[two-fifths]: what a layer adds to an element is multiplied by 1.000, expected 0 or 1.667"
)
def leaves_the_factor_out(drop, self, y_BTD):
    """Elements are dropped by a mask, and those that stay are not divided by 1 - p."""
    return drop(self, y_BTD) * (1 - self.dropout)


@broken(
    Layer, "drop", "BLK-11a[two-fifths]: what a layer adds to an element is multiplied by 2.500, expected 0 or 1.667"
)
def takes_the_share_for_what_stays(drop, self, y_BTD):
    """The probability of the recipe is read as the share that stays."""
    return F.dropout(y_BTD, 1 - self.dropout)


@broken(Layer, "drop", "BLK-11a[two-fifths]: 100.0% of the elements are kept by 0 of two layers, expected 16.0%")
def drops_whole_tokens(drop, self, y_BTD):
    """The mask is drawn for each token and holds for all its elements."""
    return y_BTD * F.dropout(torch.ones_like(y_BTD[..., :1]), self.dropout)


@broken(Layer, "drop", "BLK-11b[microbatches]: token 0 of step 1 and token 1 of step 1 have the same gradient")
def drops_the_same_in_a_whole_row(drop, self, y_BTD):
    """The mask is drawn for a row and holds for all its tokens, as in recurrent networks."""
    return y_BTD * F.dropout(torch.ones_like(y_BTD[:, :1]), self.dropout)


@broken(Layer, "drop", "BLK-11a[two-fifths]: of the elements are kept by 0 of two layers, expected 16.0%")
def drops_the_same_in_every_layer(drop, self, y_BTD):
    """The generator is set back after each layer, so that two layers drop the same elements."""
    state = torch.get_rng_state()
    y_BTD = drop(self, y_BTD)
    torch.set_rng_state(state)
    return y_BTD


@broken(Layer, "drop", "BLK-11b[microbatches]: token 0 of step 1 and token 1 of step 1 have the same gradient")
def never_drops(drop, self, y_BTD):
    """The recipe's dropout reaches no layer."""
    return y_BTD


@broken(Layer, "drop", "BLK-11e[streams]: what layers.4 adds to token (0, 0) is what it adds without")
def drops_nothing_between_streams(drop, self, y_BTD):
    """Hyper-connections add a layer's output in a way of their own, which has no dropout."""
    return drop(self, y_BTD) if self.streams is None else y_BTD


@broken(Layer, "drop", "BLK-11e[scan-author-dp]: what layers.2 adds to token (0, 0) is what it adds without")
def drops_in_the_first_mode(drop, self, y_BTD):
    """The layer of a custom mixer is another class, whose output is added as it is."""
    return y_BTD if isinstance(self.mixer, Mamba3) else drop(self, y_BTD)


@broken(MtpModule, "__init__", "BLK-11e[prediction-mlp]: what mtp.1.mlp adds to token (0, 0)",
        "BLK-11e[prediction-attention]: what mtp.0.attention adds to token (0, 0)")  # fmt: skip
def predicts_without_dropout(init, self, recipe, parts):
    """Prediction heads are built of a recipe of their own, which has no dropout."""
    init(self, replace(recipe, dropout=0.0), parts)


@broken(Trainer, "accumulate", "BLK-11b[microbatches]: token 0 of step 1 and token 16 of step 1", bugs=("DAT-09",))
def seeds_every_microbatch(accumulate, self, micro, counts):
    """The generator is seeded before each microbatch, so that all drop the same."""
    torch.manual_seed(self.recipe.seed)
    return accumulate(self, micro, counts)


@broken(Trainer, "step_over", "BLK-11b[experts]: token 0 of step 1 and token 0 of step 2 have the same gradient")
def seeds_every_step(step_over, self, *given):
    """The generator is seeded before each step, for the sake of reproducible steps."""
    torch.manual_seed(self.recipe.seed)
    return step_over(self, *given)


@broken(
    Model, "run", "BLK-11d[dense]: recomputed, the gradient of",
    "BLK-11d[experts-in-microbatches]: recomputed, lm is",
    "CKPT-01k[dropout-qk-norm-softmax-bf16-muon-linear-mtp-relu2-accumulated-packed-AEMR-recomputed]: after 0 loads, "
    "step 1: ", bugs=("ACK-01",),
)  # fmt: skip
def draws_other_masks_when_it_recomputes(run, self, layer, x, pack):
    """The state of the generator is not kept for the second forward pass."""
    if not self.recompute:
        return run(self, layer, x, pack)
    return checkpoint(layer, x, pack, use_reentrant=False, preserve_rng_state=False)


@broken(Trainer, "accumulate", "BLK-11d[experts-in-microbatches]: recomputed, lm is", "BLK-11d[dense]: (step 2)")
def leaves_the_generator_where_the_recomputation_was(accumulate, self, micro, counts):
    """Over-correction: the state that was set for the second pass stays after it, and the next masks are old ones."""
    before = torch.get_rng_state()
    out = accumulate(self, micro, counts)
    if self.model.recompute:
        torch.set_rng_state(before)
    return out
