"""Gradients, labels, losses and norms that are added up in half precision."""

import torch

from contracts.law._bugs.numeric import Fp8Matmul, Optimizer, ParallelTrainer, ShardedOptimizer, Trainer, broken
from contracts.spec import Recipe


def _half(recipe: Recipe) -> torch.dtype:
    """The dtype of a recipe's activations."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.dtype, torch.float32)


@broken(
    Trainer,
    "accumulate",
    "PREC-05d[dense-fp16]: over four microbatches the gradient of",
    "PREC-05d[dense]: over four microbatches the gradient of",
    "PREC-05d[letters]: over four microbatches the gradient of",
)
def adds_gradients_in_half(accumulate, self, micro, counts):
    """Gradients have the dtype of the activations, and so has their sum over microbatches."""
    out = accumulate(self, micro, counts)
    for parameter in self.model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to(_half(self.recipe)).to(parameter.dtype)
    return out


@broken(Fp8Matmul, "scale_of", "PREC-05d[fp8]: over four microbatches the gradient of")
def keeps_the_scales_of_the_first_microbatch(scale_of, self, t_RC, role, along, matrix):
    """A scale is computed once a step, over the first microbatch, and later ones are cut off at its largest number."""
    kept = vars(self).setdefault("kept", {})
    if role not in kept:
        kept[role] = scale_of(self, t_RC, role, along, matrix)
    return kept[role]


@broken(
    Trainer,
    "count",
    "PREC-06a[dense-fp16]: labels count, expected 2051",
    "PREC-06a[dense]: labels count, expected 301",
    "PREC-06a[letters]: labels count, expected 301",
)
def counts_labels_in_half(count, self, micro):
    """The mask of labels has the dtype of the model, and so has its sum."""
    return {name: each.to(_half(self.recipe)) for name, each in count(self, micro).items()}


@broken(ParallelTrainer, "count", "PREC-06b[dp2]: labels count, expected 301")
def counts_labels_in_half_on_ranks(count, self, micro):
    """Ranks add up their counts in the dtype of the model."""
    return {name: each.to(_half(self.recipe)) for name, each in count(self, micro).items()}


@broken(Trainer, "total", "PREC-06a[prediction-heads]: lm is", "PREC-06a[dense]: lm is")
def adds_losses_in_half(total, self, parts):
    """The loss of a window is added up in the dtype in which the model gave it (transformers #8561)."""
    half = _half(self.recipe)
    rounded = [{name: each.to(half) if each.is_floating_point() else each for name, each in part.items()}
               for part in parts]  # fmt: skip
    return {name: each.float() if each.dtype == half else each for name, each in total(self, rounded).items()}


@broken(
    Trainer,
    "validate",
    "PREC-06c[dense]: the loss of a validation over 7 batches is",
    "PREC-06c[letters]: the loss of a validation over 7 batches is",
)
def adds_losses_of_validations_in_half(validate, self, batches):
    """The losses of a validation are added up in the dtype of the model."""
    told = torch.tensor([validate(self, [each]) for each in batches])
    return float(told.to(_half(self.recipe)).sum() / len(batches))


@broken(ParallelTrainer, "over_parts", "PREC-06b[fsdp2]: lm is")
def sends_losses_in_half(over_parts, self, values):
    """The loss that is logged is reduced over ranks in the dtype of the model."""
    half = _half(self.recipe)
    sent = {name: each.to(half) if each.is_floating_point() else each for name, each in values.items()}
    return {name: each.to(values[name].dtype) for name, each in over_parts(self, sent).items()}


@broken(Optimizer, "clip", "PREC-06a[dense]: the norm is", "PREC-06a[letters]: the norm is")
def takes_the_norm_in_half(clip, self):
    """The norm of each tensor and the norm of these norms have the dtype of the gradients (torchtitan #4135)."""
    grads = [each.parameter.grad for each in self.members if each.parameter.grad is not None]
    norm = float(torch.stack([grad.to(torch.bfloat16).norm() for grad in grads]).norm())
    coefficient = self.coefficient(norm)
    for grad in grads:
        grad.mul_(coefficient)
    return norm, coefficient


@broken(ShardedOptimizer, "norm_of", "PREC-06b[tp2-sp]: the norm is", "PREC-06b[fsdp2]: the norm is")
def takes_the_norm_in_half_on_ranks(norm_of, self, parameters):
    """The norm of a rank is rounded to the dtype of the model before it is sent (fairscale #1092)."""
    return float(torch.tensor(norm_of(self, parameters), dtype=torch.bfloat16))
