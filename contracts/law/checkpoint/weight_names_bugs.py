"""Importers that misread the names of weights."""

import torch

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.checkpoint.weight_names import WeightNames


@broken(
    WeightNames, "bare", "CKPT-06c[begins-with-the-same-letters]: becomes weight, as another does", bugs=("RSM-43",)
)
def strips_letters(bare, self, name):
    """Calls `lstrip`, which takes a set of letters instead of a prefix."""
    return name.removeprefix("_orig_mod.").lstrip("module.")  # the fault


@broken(
    WeightNames, "bare", "CKPT-06c[wrapped-twice]: ['module.module.layers.0.mixer.wq.weight'] became ['module.layers"
)
def strips_once(bare, self, name):
    """Strips one prefix where DDP wraps a Float16Module and there are two."""
    return name.removeprefix("_orig_mod.").removeprefix("module.")


@broken(WeightNames, "bare", "CKPT-06c[a-block-by-itself]: became ['layers.3._orig_mod.mixer.w1.weight']")
def strips_in_front_alone(bare, self, name):
    """Strips prefixes only at the front, although each block is compiled by itself."""
    while name.startswith(("_orig_mod.", "module.")):
        name = name.removeprefix("_orig_mod.").removeprefix("module.")
    return name


@broken(WeightNames, "bare", "CKPT-06c[bare]: mtp.0._norm.weight")
def strips_anywhere(bare, self, name):
    """Over-correction: removes the letters wherever they stand, inside a name too."""
    return name.replace("_orig_mod.", "").replace("module", "").strip(".")


@broken(WeightNames, "stack", "CKPT-06d[ascending]: were stacked, and the state layers.1.mixer.experts.w1 differs")
def stacks_as_text(stack, self, experts):
    """Sorts the names as text: expert 10 stands third, and every router row after it meets another expert."""
    return torch.stack([experts[number] for number in sorted(experts, key=str)])


@broken(WeightNames, "stack", "CKPT-06d[wrapped]: were stacked, and the state layers.1.mixer.experts.w1 differs")
def stacks_as_found(stack, self, experts):
    """Stacks the experts in the order in which the file lists them."""
    return torch.stack(list(experts.values()))


@broken(WeightNames, "rename", "CKPT-06d[ascending]: lacks layers.1.mixer.router.bias", bugs=("EXB-09",))
def leaves_buffers_behind(rename, self, tensors, naming):
    """Maps only parameters, but a router's selection bias is a buffer."""
    renamed = rename(self, tensors, naming)
    return {name: each for name, each in renamed.items() if not name.endswith("router.bias")}


def _next(head, tail):
    number, _, rest = tail.partition(".")
    return f"{head}.experts.{int(number) + 1}.{rest}"


@broken(WeightNames, "per_expert", "CKPT-06d[ascending]: 12 experts were taken apart, and the state lacks")
def counts_from_one(per_expert, self, tensors):
    """Writes names that count experts from 1."""
    found = per_expert(self, tensors)
    parts = {name: name.split(".experts.") for name in found}
    return {name if len(split) == 1 else _next(split[0], split[1]): found[name] for name, split in parts.items()}
