"""Maps canonical names (spec/blocks.py) to transformers' and back, for weights, gradients and moments alike.

Three layouts differ. DeepSeek's rope turns rows 2i and
2i + 1 together, the canonical rope i and i + d/2; its indexer has the part with rope first, and ours last; a depthwise
convolution has a dim of size 1 in the middle.
"""

from contracts.spec import Recipe
from contracts.spec import pattern as patterns
from contracts.stacks.kit.links import Link, depthwise, joined, of_each, of_heads, ordered, paired, same
from contracts.stacks.transformers.configuration import BAMBA, FALCON_H1, GRANITE, MIXTRAL, NEMOTRON_H, Kind


def links(kind: Kind, recipe: Recipe) -> tuple[Link, ...]:
    """Every tensor of a model."""
    embedding = "embeddings" if kind is NEMOTRON_H else "embed_tokens"
    norm = {NEMOTRON_H: "norm_f", BAMBA: "final_layernorm", FALCON_H1: "final_layernorm"}.get(kind, "norm")
    found = [
        same(f"model.{embedding}.weight", "embedding.weight"),
        same(f"model.{norm}.weight", "norm.weight"),
    ]
    if recipe.untied_embeddings:
        found.append(same("lm_head.weight", "head.weight"))
    for number, letter in enumerate(patterns.parse(recipe.pattern, recipe.depth).letters):
        there = f"model.layers.{number // 2 if kind.paired else number}."
        found += [each.within(there, f"layers.{number}.") for each in block(kind, letter, recipe)]
    return tuple(found)


def block(kind: Kind, letter: str, recipe: Recipe) -> list[Link]:
    """The tensors of one block, named from its layer on: ours from `mixer.`, theirs from `self_attn.` or the like."""
    if letter == "A" and kind is FALCON_H1:
        norm, branch = "input_layernorm", ""
        inside = [each.within("self_attn.", "attention.") for each in _grouped(recipe)]
        inside += [each.within("mamba.", "ssm.") for each in _scan(recipe)]
    elif letter == "A":
        norm, branch = ("norm", "mixer.") if kind is NEMOTRON_H else ("input_layernorm", "self_attn.")
        inside = _latent(recipe) if recipe.mla else _grouped(recipe)
    elif letter == "M":
        norm, branch = ("norm", "mixer.") if kind is NEMOTRON_H else ("input_layernorm", "mamba.")
        inside = _scan(recipe)
    else:
        norms = {NEMOTRON_H: "norm", BAMBA: "pre_ff_layernorm", FALCON_H1: "pre_ff_layernorm"}
        norm, branch = norms.get(kind, "post_attention_layernorm"), "mixer." if kind is NEMOTRON_H else ""
        inside = _mlp(kind, recipe)
    return [same(f"{norm}.weight", "norm.weight"), *(each.within(branch, "mixer.") for each in inside)]


def _grouped(recipe: Recipe) -> list[Link]:
    found = [same(f"{name}_proj.weight", f"w{name}.weight") for name in "qkvo"]
    if "attention" in recipe.biases:
        found += [same(f"{name}_proj.bias", f"w{name}.bias") for name in "qkvo"]
    return found + (
        [same(f"{name}.weight", f"{name}.weight") for name in ("q_norm", "k_norm")] if recipe.qk_norm else []
    )


def _latent(recipe: Recipe) -> list[Link]:
    mla = recipe.mla
    assert mla is not None
    found = [
        same("q_a_proj.weight", "wq_a.weight"),
        same("q_a_layernorm.weight", "q_norm.weight"),
        ordered("q_b_proj.weight", "wq_b.weight", of_heads(paired(mla.qk_rope, mla.qk_head), recipe.heads)),
        ordered("kv_a_proj_with_mqa.weight", "wkv_a.weight", paired(mla.qk_rope, mla.kv_lora)),
        same("kv_a_layernorm.weight", "kv_norm.weight"),
        same("kv_b_proj.weight", "wkv_b.weight"),
        same("o_proj.weight", "wo.weight"),
    ]
    if recipe.dsa is None:
        return found
    dsa = recipe.dsa
    width = dsa.index_head_dim
    first = [*range(width - mla.qk_rope, width), *range(width - mla.qk_rope)]  # the part with rope comes first there
    return [
        *found,
        ordered("indexer.wq_b.weight", "indexer.wq.weight", of_heads(first, dsa.index_heads)),
        *(
            ordered(f"indexer.{name}", f"indexer.{name}", first)
            for name in ("wk.weight", "k_norm.weight", "k_norm.bias")
        ),
        same("indexer.weights_proj.weight", "indexer.weights.weight"),
    ]


def _mlp(kind: Kind, recipe: Recipe) -> list[Link]:
    moe = recipe.moe
    prefix = {NEMOTRON_H: "", BAMBA: "feed_forward.", FALCON_H1: "feed_forward."}.get(kind, "mlp.")
    if moe is None:
        parts = ("weight", "bias") if "mlp" in recipe.biases else ("weight",)
        return [link for part in parts for link in _halves(prefix, "", part, gated=recipe.activation == "swiglu")]
    older = kind.has("ParallelExperts")  # Granite up to 5.10
    # Mixtral's experts lie under the name that its checkpoints have, up to 4.57
    outer = "block_sparse_moe." if kind is GRANITE or (kind is MIXTRAL and not kind.has("Experts")) else prefix
    router = ("router.layer" if older else "router") if kind is GRANITE else "gate"
    found = [same(f"{outer}{router}.weight", "router.weight")]
    if moe.selection_bias:
        found.append(same(f"{outer}{router}.e_score_correction_bias", "router.bias"))
    if recipe.activation == "swiglu" and has_lists_of_experts(kind):
        names = {"w1": "w1", "w3": "w3", "w2": "w2"} if kind is MIXTRAL else _GATED
        for other, name in names.items():
            tail = "" if kind is MIXTRAL else "_proj"
            found += of_each(f"{outer}experts.{{}}.{other}{tail}.weight", f"experts.{name}", moe.experts)
    elif recipe.activation == "swiglu":
        halves = [moe.expert_hidden] * 2
        into, out = ("input_linear.weight", "output_linear.weight") if older else _STACKED
        both = joined(f"{outer}{into}", ("experts.w1", "experts.w3"), halves, dim=1)
        found += [both, same(f"{outer}{out}", "experts.w2")]
    else:
        found += [same("experts.up_proj", "experts.w1"), same("experts.down_proj", "experts.w2")]
    if moe.shared_hidden and kind is GRANITE:
        ours = ("shared.w1.weight", "shared.w3.weight")
        both = joined("shared_mlp.input_linear.weight", ours, (moe.shared_hidden, moe.shared_hidden))
        return [*found, both, same("shared_mlp.output_linear.weight", "shared.w2.weight")]
    if moe.shared_hidden:
        found += _halves(f"{prefix}shared_experts.", "shared.", "weight", gated=recipe.activation == "swiglu")
    return found


_STACKED = ("experts.gate_up_proj", "experts.down_proj")
_GATED = {"gate": "w1", "up": "w3", "down": "w2"}


def has_lists_of_experts(kind: Kind) -> bool:
    """Whether its experts are a list of MLPs, as up to 4.57."""
    return not any(kind.has(name) for name in ("Experts", "NaiveMoe", "ParallelExperts"))


def _halves(there: str, here: str, part: str, *, gated: bool) -> list[Link]:
    names = _GATED if gated else {"up": "w1", "down": "w2"}
    return [same(f"{there}{other}_proj.{part}", f"{here}{name}.{part}") for other, name in names.items()]


def _scan(recipe: Recipe) -> list[Link]:
    mamba = recipe.mamba
    inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
    parts = (inner, grouped, grouped)
    names = ("x", "b", "c")
    rows = (inner, *parts, mamba.heads)
    return [
        joined("in_proj.weight", ["wz.weight", *(f"w{name}.weight" for name in names), "wdt.weight"], rows),
        depthwise("conv1d.weight", [f"conv_{name}.weight" for name in names], parts),
        joined("conv1d.bias", [f"conv_{name}.bias" for name in names], parts),
        *(same(name, name) for name in ("A_log", "D", "dt_bias")),
        same("norm.weight", "out_norm.weight"),
        same("out_proj.weight", "wo.weight"),
    ]
