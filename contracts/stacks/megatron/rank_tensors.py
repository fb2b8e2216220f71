"""This rank's tensors of a model, named as in the full model, and full tensors gathered from all ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from contracts.stacks.kit.links import Link
from contracts.stacks.megatron.shims import mcore
from contracts.stacks.megatron.weight_mapping import EXPERTS, ours_of, put_together


@dataclass(frozen=True, kw_only=True)
class RankTensor:
    """One of this rank's tensors and its place in the full tensor.

    Args:
        name: Megatron's, with layers and experts counted over all ranks.
        part: its index in the group that shards it. copy: its index among the equal copies.
    """

    name: str
    tensor: Any
    part: int
    copy: int


def is_trained(each: RankTensor) -> bool:
    return bool(each.tensor.requires_grad)


def rank_tensors_of(chunk: Any, table: Mapping[str, Link]) -> list[RankTensor]:
    """This rank's tensors of a chunk, under names counted over all ranks."""
    state = mcore("parallel_state")
    first = _first_layer(chunk)
    experts = 0
    if chunk.config.num_moe_experts:
        experts = chunk.config.num_moe_experts // state.get_expert_model_parallel_world_size()
    found = []
    for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers()):
        words = name.split(".")
        if "layers" in words and words[0] != "mtp":  # prediction heads are on one rank
            words[words.index("layers") + 1] = str(int(words[words.index("layers") + 1]) + first)
        if "local_experts" in words:
            place = words.index("local_experts") + 1
            words[place] = str(int(words[place]) + experts * state.get_expert_model_parallel_rank())
        full = ".".join(words)
        if full == "output_layer.weight" and full not in table and not hasattr(chunk, "embedding"):
            full = "embedding.word_embeddings.weight"  # tied, on the last stage: a copy that Megatron keeps equal
        if full not in table:
            continue
        expert = EXPERTS in full
        part = state.get_expert_tensor_parallel_rank() if expert else state.get_tensor_model_parallel_rank()
        copy = state.get_expert_data_parallel_rank() if expert else state.get_data_parallel_rank()
        found.append(RankTensor(name=full, tensor=tensor, part=part, copy=copy))
    return found


def _first_layer(chunk: Any) -> int:
    """The number, from 0 and over all ranks, of the first layer of a chunk; layers count from 1 in Megatron."""
    layers = chunk.decoder.layers
    return int(layers[0].layer_number) - 1 if len(layers) else 0


def full_tensors(
    table: Mapping[str, Link],
    shapes: Mapping[str, tuple[int, ...]],
    held: list[RankTensor],
    local: Mapping[int, Tensor],
) -> dict[str, Tensor]:
    """Full tensors by our names, gathered from the parts of all ranks; `local` maps an index in `held` to a part.

    They are on the host. The parts of one full tensor come from ranks with the same copy index, so that copies that
    drift apart are seen.
    """
    told = {n: each.detach().to("cpu", copy=True) for n, each in local.items()}
    mine = [(each.name, each.part, each.copy, told[n]) for n, each in enumerate(held) if n in told]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    copies = {each.name: each.copy for each in held}
    parts: dict[str, dict[int, Tensor]] = {}
    for name, part, copy, tensor in sorted((row for rows in every for row in rows), key=lambda row: row[:3]):
        kept = parts.setdefault(name, {})
        if part not in kept or copy == copies.get(name):
            kept[part] = tensor
    found = {
        name: put_together(table[name], [kept[n] for n in sorted(kept)], shapes[name]) for name, kept in parts.items()
    }
    return ours_of(table, found)
