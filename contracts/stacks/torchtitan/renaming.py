"""Weights under the names of Hugging Face's files and of its models, by the state-dict adapter of its DeepSeek-V3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter

from contracts.instruments import numerics
from contracts.spec.array import Arrays
from contracts.spec.checkpointing import Naming
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Mla, Moe, Recipe
from contracts.stacks.torchtitan import shims
from contracts.stacks.torchtitan.model import config_of
from contracts.stacks.torchtitan.weight_mapping import experts

OURS = re.compile(r"layers\.(\d*[13579])\.mixer\.(experts(?=\.\d)|)\.?(\d*)\.?(.+)")


def rename_weights(tensors: Arrays, naming: Naming) -> Arrays:
    """The tensors of expert layers, stacked as its models hold them or one by one as those files do.

    Raises:
        NotOffered: for a name that is in no such layer. Its checkpoints have no wrapper's names.
    """
    given = numerics.tensors(tensors)
    named = {name: _parsed(name) for name in given}
    layers = 1 + max(layer for layer, _, _ in named.values())
    experts = {expert for _, expert, _ in named.values() if expert is not None}
    held = [len(each) for name, each in given.items() if ".experts.w" in name]
    with shims.quiet():
        adapter = DeepSeekV3StateDictAdapter(config_of(_recipe(layers, held[0] if held else len(experts))), None)
        files = {theirs: name for name, theirs in adapter.from_hf_map.items()}
        if naming == "stacked":
            found = adapter.from_hf(
                {files[f"layers.{{}}.{inner}"].format(layer, expert): given[name]
                 for name, (layer, expert, inner) in named.items()}
            )  # fmt: skip
        else:
            found = adapter.to_hf({f"layers.{layer}.{inner}": given[name] for name, (layer, _, inner) in named.items()})
            found = {_of_a_file(name, adapter.from_hf_map): each for name, each in found.items()}
    return numerics.arrays({_ours(name): each for name, each in found.items()})


def _parsed(name: str) -> tuple[int, int | None, str]:
    """Its layer, the number of an expert by itself, and its name inside of that layer."""
    found = OURS.fullmatch(name)
    single = found is not None and bool(found[2])
    inner = found and experts().get(f"experts.{found[4]}" if single else found[3] + found[4])
    if not found or not inner:
        raise NotOffered(f"torchtitan 0.3.0: its adapters know the names of its models, and {name} is none", "stack")
    return int(found[1]) // 2, int(found[3]) if single else None, inner


def _of_a_file(name: str, known: Mapping[str, str]) -> str:
    """Its name for what a file has under a name, with the number of an expert by itself after it."""
    layer, *expert = re.findall(r"\.(\d+)\.", name)
    for count in (2, 1):
        theirs = known.get(re.sub(r"\.\d+\.", ".{}.", name, count=count))
        if theirs:
            return ".".join([theirs.format(layer), *expert])
    raise KeyError(name)


def _ours(theirs: str) -> str:
    _, layer, inner = theirs.split(".", 2)
    name, _, expert = inner.rpartition(".")
    single = expert.isdecimal()
    ours = next(ours for ours, each in experts().items() if each == (name if single else inner))
    prefix = f"layers.{2 * int(layer) + 1}.mixer"
    return f"{prefix}.experts.{expert}.{ours.removeprefix('experts.')}" if single else f"{prefix}.{ours}"


def _recipe(layers: int, experts: int) -> Recipe:
    """A recipe with these numbers of layers and experts; its sizes are in no name."""
    named: Any = {"name": "renamed", "family": "renamed", "pattern": "AE", "depth": 2 * layers}
    mla = Mla(q_lora=8, kv_lora=8, qk_head=8, qk_rope=8, v_head=8)
    moe = Moe(experts=experts, top_k=1, expert_hidden=8, shared_hidden=8, score="sigmoid", selection_bias=True)
    return Recipe(**named, hidden=16, ffn_hidden=8, heads=2, kv_groups=2, seq_length=8, vocab=8, mla=mla, moe=moe)
