"""Which experts a router chose, and the buffers of stacks that count assignments or bias the choice.

A router is a module that returns a choice beside its scores: numbers of experts, [..., k], or a map, [tokens, experts].
"""

import re
from collections import Counter
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


class Dispatch:
    """The routers that ran, the latest last, and the modules beside each that may be given its rows."""

    def __init__(self) -> None:
        self.routers: list[str] = []
        self.beside: dict[int, tuple[str, int, bool]] = {}  # its router, among how many experts, and whether it is one

    def chose(self, router: str, experts: int, modules: Mapping[int, str]) -> None:
        if router not in self.routers:
            owner = router.rpartition(".")[0]
            lists = Counter(name.rpartition(".")[0] for name in modules.values() if name.rpartition(".")[2].isdecimal())
            for number, name in modules.items():
                holder = name.rpartition(".")[0]
                listed = holder.rpartition(".")[0] == owner and lists[holder] > 1 and experts % lists[holder] == 0
                if listed or (holder == owner and name != router):
                    self.beside[number] = router, experts, listed
        self.routers = [*(each for each in self.routers if each != router), router]

    def handed(self, module: int, arguments: Any) -> tuple[str, int | None]:
        """Whose rows a call is given, and how many: all, if it is one expert; else as many as the numbers beside them
        add up to, one for each expert of this rank or of all."""
        router, experts, one = self.beside[module]
        tensors = [each.to_local() if isinstance(each, DTensor) else each for each in arguments
                   if isinstance(each, Tensor)]  # fmt: skip
        floats = [each for each in tensors if each.is_floating_point() and each.dim() > 1]
        rows = floats[0].numel() // max(1, floats[0].shape[-1]) if floats else 0
        counts = [int(each.sum()) for each in tensors if each.dim() == 1 and len(each) and experts % len(each) == 0
                  and each.dtype in (torch.int64, torch.int32)]  # fmt: skip
        return router, rows if one else next((each for each in counts if 0 <= each <= rows), None)


def kept(root: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """The kind of each such buffer of a model, the module that has it and its name there."""
    for module in root.modules():
        for name, each in module.named_buffers(recurse=False):
            kind = next((kind for kind, said in BUFFERS.items() if said.fullmatch(name)), None)
            if kind is not None and each.dim() == 1:
                yield kind, module, name


def values(module: nn.Module, name: str) -> list[float]:
    """A buffer as it is now: of a DTensor what this rank holds."""
    held = getattr(module, name)
    return [float(each) for each in (held.to_local() if isinstance(held, DTensor) else held).tolist()]
