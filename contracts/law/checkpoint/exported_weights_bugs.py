"""Exports in another dtype than the one that was asked for, or under wrong names."""

import json

import torch

from contracts.law._bugs.numeric import broken
from contracts.stacks.reference.checkpoint import weight_names
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


@broken(
    WeightNames,
    "index",
    "CKPT-06g[tied-in-three]: the index names head.weight in model-00001-of-00003.safetensors",
)
def names_a_tied_projection(index, self, parts, places):
    """The index of the untied model is written."""
    return index(self, parts, {"head.weight": min(places.values()), **places})


@broken(WeightNames, "index", "CKPT-06g[experts-in-three]: of model-00003-of-00003.safetensors is not in the index")
def forgets_the_last_file(index, self, parts, places):
    """The index is written before the last file is."""
    return index(self, parts, {name: file for name, file in places.items() if file != max(places.values())})


@broken(WeightNames, "index", "CKPT-06g[plain-in-three]: the index says that all have")
def adds_up_the_first_file(index, self, parts, places):
    """Each file says its own size, and the index the first one's."""
    return index(self, parts[:1], places)


@broken(WeightNames, "dealt", "CKPT-06g[plain-in-three]: embedding.weight stands in two files")
def writes_the_embedding_with_each_stage(dealt, self, tensors, files):
    """First and last stage have the embedding, and both write it."""
    parts = dealt(self, tensors, files)
    return [*parts[:-1], parts[-1] | {"embedding.weight": tensors["embedding.weight"]}]


@broken(WeightNames, "dealt", "CKPT-06g[tied-in-one]: and they are others")
def leaves_out_the_last_norm(dealt, self, tensors, files):
    """The table of names knows what lies inside of layers."""
    return dealt(self, {name: each for name, each in tensors.items() if name != "norm.weight"}, files)


@broken(weight_names, "_safetensors", "CKPT-06g[tied-in-three]: model-00001-of-00003.safetensors: KeyError: ''")
def makes_room_for_a_tied_projection(safetensors, tensors):
    """The header has a row for each name of the untied model, and nothing fills it."""
    content = safetensors(tensors)
    if "embedding.weight" not in tensors:
        return content
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length]) | {"head.weight": {"dtype": "", "shape": [], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


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
