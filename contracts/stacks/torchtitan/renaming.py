"""Weights under the names of Hugging Face's files and of its models, by the state-dict adapter of its DeepSeek-V3."""

import re
from typing import Any

from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter

from contracts.instruments import numerics
from contracts.spec import Arrays, Mla, Moe, Naming, NotOffered, Recipe, refuse
from contracts.stacks.torchtitan import shims
from contracts.stacks.torchtitan.model import config_of
from contracts.stacks.torchtitan.weight_mapping import experts

OURS = re.compile(r"layers\.(\d*[13579])\.mixer\.(experts(?=\.\d)|)\.?(\d*)\.?(.+)")
PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
FILES = {
    "router.weight": "gate.weight",
    "router.bias": "gate.e_score_correction_bias",
    **{f"shared.{ours}.weight": f"shared_experts.{theirs}.weight" for ours, theirs in PROJECTIONS.items()},
    **{f"experts.{{}}.{ours}": f"experts.{{}}.{theirs}.weight" for ours, theirs in PROJECTIONS.items()},
}
"""The names of DeepSeek-V3's files, after `model.layers.N.mlp.`; its table of them is what is asked about."""


def rename_weights(tensors: Arrays, naming: Naming) -> Arrays:
    """The tensors of expert layers, stacked as its models hold them or one by one as those files do.

    Raises:
        NotOffered: for a name that is in no such layer. Its checkpoints have no wrapper's names.
        Refused: where its adapter does not know a name of its own model or of the file.
    """
    given = numerics.tensors(tensors)
    named = {name: _parsed(name) for name in given}
    layers = 1 + max(layer for layer, _, _ in named.values())
    single = {expert for _, expert, _ in named.values() if expert is not None}
    held = [len(each) for name, each in given.items() if ".experts.w" in name]
    with shims.quiet():
        adapter = DeepSeekV3StateDictAdapter(config_of(_recipe(layers, held[0] if held else len(single))), None)
        of = _file if naming == "stacked" else _of_the_model
        asked = {of(*named[name]): each for name, each in given.items()}
        try:
            found = adapter.from_hf(asked) if naming == "stacked" else adapter.to_hf(asked)
        except KeyError as error:
            raise refuse("tensors", min(asked), f"its adapter has no name for {error}", "add it") from None
    return numerics.arrays({_ours(name): each for name, each in found.items()})


def _parsed(name: str) -> tuple[int, int | None, str]:
    """Its layer, the number of an expert by itself, and its name inside of that layer."""
    found = OURS.fullmatch(name)
    single = found is not None and bool(found[2])
    inner = found and (f"experts.{found[4]}" if single else found[3] + found[4])
    if not found or inner not in experts():
        raise NotOffered(f"torchtitan 0.3.0: its adapters know the names of its models, and {name} is none", "stack")
    return int(found[1]) // 2, int(found[3]) if single else None, str(inner)


def _file(layer: int, expert: int | None, inner: str) -> str:
    ours = inner if expert is None else inner.replace("experts.", "experts.{}.")
    return f"model.layers.{layer}.mlp.{FILES[ours].format(expert)}"


def _of_the_model(layer: int, _: int | None, inner: str) -> str:
    return f"layers.{layer}.{experts()[inner]}"


def _ours(theirs: str) -> str:
    """Our name for one of its model or of a file; one that neither has stays as it is."""
    layer, inner = re.sub(r"^model\.", "", theirs).removeprefix("layers.").split(".", 1)
    expert = next(iter(re.findall(r"(?<=experts\.)\d+", inner)), "")
    plain = inner.replace(f"experts.{expert}.", "experts.{}.") if expert else inner
    known = {each: ours for ours, each in experts().items()} | {f"mlp.{each}": ours for ours, each in FILES.items()}
    return f"layers.{2 * int(layer) + 1}.mixer.{known[plain].format(expert)}" if plain in known else theirs


def _recipe(layers: int, experts: int) -> Recipe:
    """A recipe with these numbers of layers and experts; its sizes are in no name."""
    named: Any = {"name": "renamed", "family": "renamed", "pattern": "AE", "depth": 2 * layers}
    mla = Mla(q_lora=8, kv_lora=8, qk_head=8, qk_rope=8, v_head=8)
    moe = Moe(experts=experts, top_k=1, expert_hidden=8, shared_hidden=8, score="sigmoid", selection_bias=True)
    return Recipe(**named, hidden=16, ffn_hidden=8, heads=2, kv_groups=2, seq_length=8, vocab=8, mla=mla, moe=moe)
