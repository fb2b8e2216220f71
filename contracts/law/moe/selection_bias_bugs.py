"""Selection bias updates with one bug each."""

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.law._bugs.numeric import MoE, ParallelTrainer, Trainer, broken, with_attributes


@broken(MoE, "update_bias", "MOE-06a[small]: expected -0.001")
def moves_the_bias_away(update_bias, bias_E, counts_E, rate):
    """The sign is taken of load minus mean, so a crowded expert draws even more tokens."""
    update_bias(bias_E, counts_E, -rate)


@broken(MoE, "update_bias", "MOE-06a[large]: expected -0.25")
@torch.no_grad()
def moves_by_the_error(update_bias, bias_E, counts_E, rate):
    """The bias moves by the error itself, relative to the mean, instead of by its sign."""
    load_E = counts_E.to(bias_E)
    bias_E.add_((load_E.mean() - load_E) / load_E.mean(), alpha=rate)


@broken(MoE, "update_bias", "MOE-06a[large]: asked 4 times where the mean is 4, moved by +0.25, expected +0")
@torch.no_grad()
def averages_over_active_experts(update_bias, bias_E, counts_E, rate):
    """The mean leaves idle experts out, so experts at the true mean are raised as well."""
    load_E = counts_E.to(bias_E)
    bias_E.add_((load_E[load_E > 0].mean() - load_E).sign(), alpha=rate)


@broken(MoE, "update_bias", "MOE-06a[small]: where the mean is 4, moved by +0.001, expected +0")
@torch.no_grad()
def never_leaves_a_bias_at_rest(update_bias, bias_E, counts_E, rate):
    """The comparison knows only up and down, so the bias of a balanced expert drifts upwards."""
    load_E = counts_E.to(bias_E)
    bias_E.add_(torch.where(load_E > load_E.mean(), -1.0, 1.0).to(bias_E), alpha=rate)


@broken(MoE, "update_bias", "MOE-06a[two-microbatches]: moved by +0, expected -0.01", bugs=("EXB-04",))
def moves_a_copy(update_bias, bias_E, counts_E, rate):
    """The update is written to another tensor than the buffer that routes and is saved."""
    moved = bias_E.clone()
    update_bias(moved, counts_E, rate)
    bias_E = moved


@broken(MoE, "update_bias", "MOE-06a[large]: moved by")
@torch.no_grad()
def centres_the_bias(update_bias, bias_E, counts_E, rate):
    """The mean is subtracted after each step: the choice stays, but the state is not the declared one."""
    update_bias(bias_E, counts_E, rate)
    bias_E.sub_(bias_E.mean())


@broken(MoE, "update_bias", "MOE-06a[small]: moved by -0.00108, expected -0.001")
@torch.no_grad()
def centres_each_move(update_bias, bias_E, counts_E, rate):
    """The mean is taken off each move, and the stack does not declare it."""
    moved_E = torch.zeros_like(bias_E)
    update_bias(moved_E, counts_E, rate)
    bias_E.add_(moved_E - moved_E.mean())


with_attributes(
    "DeclaresCentredMoves",
    "Declares that moves are centred, and moves by the whole rate.",
    "MOE-06a[small]: moved by -0.001, expected -0.00108",
    conventions={"bias-moves": "centred"},
)


@broken(MoE, "update_bias", "MOE-06a[large]: moved by -0.001, expected -0.25")
def ignores_the_rate(update_bias, bias_E, counts_E, rate):
    """The paper's rate is hard-coded."""
    update_bias(bias_E, counts_E, 1e-3)


with_attributes(
    "DeclaresKeptAssignments",
    "Declares that kept assignments move the bias, and counts dropped ones too.",
    "MOE-06a[full]: where the mean is 4, moved by +0, expected -0.01",
    conventions={"capacity-counts": "kept"},
)


def _narrow(values: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: each.to(dtype) if name.endswith(".counts") else each for name, each in values.items()}


@broken(
    Trainer,
    "total",
    "MOE-06i[three-microbatches]: asked 301 times where the mean is 300, moved by",
    "MOE-06i[one]: asked 301 times where the mean is 300, moved by +0, expected -0.01",
)
def counts_in_the_dtype_of_the_model(total, self, parts):
    """Assignments are counted in a buffer of the model, which is cast to bfloat16 with it (Megatron-LM #7081)."""
    return total(self, [_narrow(part, self.model.activations) for part in parts])


@broken(
    ParallelTrainer,
    "over_parts",
    "MOE-06j[borrowed-ep2]: asked 301 times where the mean is 300, moved by +0, expected -0.01",
    "MOE-06j[dp2]: asked 301 times where the mean is 300, moved by +0, expected -0.01",
)
def adds_counts_in_the_dtype_of_the_model(over_parts, self, values):
    """Each rank counts in whole numbers, and the sum over ranks is sent in bfloat16 (Megatron-LM #7081)."""
    return over_parts(self, _narrow(values, self.model.activations))
