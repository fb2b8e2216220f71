"""Exports in another dtype than the one that was asked for."""

import torch

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.checkpoint.weight_names import WeightNames


@broken(WeightNames, "exported", "CKPT-06f[float32]: layers.0.mixer.wq.weight is bfloat16, expected float32")
def takes_weights_for_float32(exported, self, tensors, dtype):
    """float32 is the default and needs no conversion, so what was trained in bfloat16 stays so."""
    return dict(tensors) if dtype is torch.float32 else exported(self, tensors, dtype)


@broken(WeightNames, "exported", "CKPT-06f[bfloat16]: layers.1.mixer.seen is bfloat16, expected int64")
def converts_counters(exported, self, tensors, dtype):
    """Every tensor is converted, counters too."""
    return {name: each.to(dtype) for name, each in tensors.items()}


@broken(WeightNames, "exported", "CKPT-06f[float32]: exported in float32, the state embedding.weight differs")
def rounds_twice(exported, self, tensors, dtype):
    """Goes through the dtype in which the model computes."""
    return exported(self, exported(self, tensors, torch.bfloat16), dtype)
