"""Importers that misread the names of weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.checkpointing import Naming
from contracts.stacks.reference.checkpoint.weight_names import WeightNames


class _StripsLetters(WeightNames):
    def bare(self, name: str) -> str:
        return name.removeprefix("_orig_mod.").lstrip("module.")  # the fault


@mutant(of="CKPT-06c", case="begins-with-the-same-letters", says="becomes weight, as another does", bugs=("RSM-43",))
class StripsLetters(Exchanged):
    """Calls `lstrip`, which takes a set of letters instead of a prefix."""

    exchange = {"weight_names": _StripsLetters}


class _StripsOnce(WeightNames):
    def bare(self, name: str) -> str:
        return name.removeprefix("_orig_mod.").removeprefix("module.")


@mutant(of="CKPT-06c", case="wrapped-twice", says="['module.module.layers.0.mixer.wq.weight'] became ['module.layers")
class StripsOnce(Exchanged):
    """Strips one prefix where DDP wraps a Float16Module and there are two."""

    exchange = {"weight_names": _StripsOnce}


class _StripsInFrontAlone(WeightNames):
    def bare(self, name: str) -> str:
        while name.startswith(("_orig_mod.", "module.")):
            name = name.removeprefix("_orig_mod.").removeprefix("module.")
        return name


@mutant(of="CKPT-06c", case="a-block-by-itself", says="became ['layers.3._orig_mod.mixer.w1.weight']")
class StripsInFrontAlone(Exchanged):
    """Strips prefixes only at the front, although each block is compiled by itself."""

    exchange = {"weight_names": _StripsInFrontAlone}


class _StripsAnywhere(WeightNames):
    def bare(self, name: str) -> str:
        return name.replace("_orig_mod.", "").replace("module", "").strip(".")


@mutant(of="CKPT-06c", case="bare", says="mtp.0._norm.weight")
class StripsAnywhere(Exchanged):
    """Over-correction: removes the letters wherever they stand, inside a name too."""

    exchange = {"weight_names": _StripsAnywhere}


class _StacksAsText(WeightNames):
    def stack(self, experts: Mapping[int, Tensor]) -> Tensor:
        return torch.stack([experts[number] for number in sorted(experts, key=str)])


@mutant(of="CKPT-06d", case="ascending", says="were stacked, and the state layers.1.mixer.experts.w1 differs")
class StacksAsText(Exchanged):
    """Sorts the names as text: expert 10 stands third, and every router row behind it meets another expert."""

    exchange = {"weight_names": _StacksAsText}


class _StacksAsFound(WeightNames):
    def stack(self, experts: Mapping[int, Tensor]) -> Tensor:
        return torch.stack(list(experts.values()))


@mutant(of="CKPT-06d", case="wrapped", says="were stacked, and the state layers.1.mixer.experts.w1 differs")
class StacksAsFound(Exchanged):
    """Stacks the experts in the order in which the file lists them."""

    exchange = {"weight_names": _StacksAsFound}


class _LeavesBuffersBehind(WeightNames):
    def rename(self, tensors: Mapping[str, Tensor], naming: Naming) -> dict[str, Tensor]:
        renamed = super().rename(tensors, naming)
        return {name: each for name, each in renamed.items() if not name.endswith("router.bias")}


@mutant(of="CKPT-06d", case="ascending", says="lacks layers.1.mixer.router.bias", bugs=("EXB-09",))
class LeavesBuffersBehind(Exchanged):
    """Maps only parameters, but a router's selection bias is a buffer."""

    exchange = {"weight_names": _LeavesBuffersBehind}


class _CountsFromOne(WeightNames):
    def per_expert(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = super().per_expert(tensors)
        parts = {name: name.split(".experts.") for name in found}
        return {name if len(split) == 1 else _next(split[0], split[1]): found[name] for name, split in parts.items()}


def _next(head: str, tail: str) -> str:
    number, _, rest = tail.partition(".")
    return f"{head}.experts.{int(number) + 1}.{rest}"


@mutant(of="CKPT-06d", case="ascending", says="12 experts were taken apart, and the state lacks")
class CountsFromOne(Exchanged):
    """Writes names that count experts from 1."""

    exchange = {"weight_names": _CountsFromOne}
