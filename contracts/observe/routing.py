"""Which experts a router chose, and the buffers of stacks that count assignments or bias the choice.

A router is a module that returns a choice beside its scores: numbers of experts, [..., k], or a map, [tokens, experts].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

BUFFERS: Mapping[str, re.Pattern[str]] = {
    "counter": re.compile(r"(local_)?tokens_per_expert(_E)?"),
    "bias": re.compile(r"expert_bias(_E)?|e_score_correction_bias"),
}
"""What a buffer of one number an expert is, by its name: those of Megatron-Core, torchtitan and transformers."""


def chosen(result: Any) -> Tensor | None:
    """The choice in what a module returns, as a map [tokens, experts] of how often; None where there is none."""
    if not isinstance(result, (tuple, list)):
        return None
    tensors = [each.to_local() if isinstance(each, DTensor) else each for each in result if isinstance(each, Tensor)]
    scores = [each for each in tensors if each.is_floating_point() and each.dim() > 1]
    for each in (one for one in tensors if one.dim() > 1 and one.numel()):
        beside = [one.shape for one in scores if one.shape[:-1] == each.shape[:-1]]
        if each.shape not in beside:
            continue
        flat = each.reshape(-1, each.shape[-1]).long()
        if each.dtype == torch.bool:
            return flat
        # all scores, or a number for each expert, say how many there are; else it may be anything that was sorted
        experts = max([shape[-1] for shape in beside] + [len(one) for one in tensors if one.dim() == 1])
        if each.dtype in (torch.int64, torch.int32) and flat.min() >= 0 and each.shape[-1] < experts > flat.max():
            return flat.new_zeros(len(flat), experts).scatter_add_(1, flat, torch.ones_like(flat))
    return None


def kept(root: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """What each such buffer of a model is, the module that has it and its name there."""
    for module in root.modules():
        for name, each in module.named_buffers(recurse=False):
            kind = next((kind for kind, said in BUFFERS.items() if said.fullmatch(name)), None)
            if kind is not None and each.dim() == 1:
                yield kind, module, name


def values(module: nn.Module, name: str) -> list[float]:
    """A buffer as it is now: of a DTensor what this rank holds."""
    held = getattr(module, name)
    return [float(each) for each in (held.to_local() if isinstance(held, DTensor) else held).tolist()]
