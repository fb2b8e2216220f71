"""Maps canonical names (spec/blocks.py) to transformers' and back, for weights, gradients and moments alike.

A tensor there is one of ours, or several joined along a dim. Three layouts differ. DeepSeek's rope turns rows 2i and
2i + 1 together, the canonical rope i and i + d/2; its indexer has the part with rope first, and ours last; a depthwise
convolution has a dim of size 1 in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.spec import pattern as patterns
from contracts.spec.recipe import Recipe
from contracts.spec.training import Role
from contracts.stacks.transformers.configuration import CONV_WIDTH, GRANITE, NEMOTRON_H, Kind

Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Link:
    """One tensor of transformers and ours that it joins along `dim`; `put` lays it out as there, `take` undoes that."""

    theirs: str
    ours: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    dim: int = 0
    put: Move | None = None
    take: Move | None = None


def links(kind: Kind, recipe: Recipe) -> tuple[Link, ...]:
    """Every tensor of a model."""
    nemotron = kind is NEMOTRON_H
    found = [
        _one("model.embeddings.weight" if nemotron else "model.embed_tokens.weight", "embedding.weight"),
        _one("model.norm_f.weight" if nemotron else "model.norm.weight", "norm.weight"),
    ]
    if recipe.untied_embeddings:
        found.append(_one("lm_head.weight", "head.weight"))
    for number, letter in enumerate(patterns.parse(recipe.pattern, recipe.depth).letters):
        there = f"model.layers.{number // 2 if kind.paired else number}."
        found += [_within(link, there, f"layers.{number}.") for link in block(kind, letter, recipe)]
    return tuple(found)


def block(kind: Kind, letter: str, recipe: Recipe) -> list[Link]:
    """The tensors of one block, named from its layer on: ours from `mixer.`, theirs from `self_attn.` or the like."""
    if letter == "A":
        norm, branch = ("norm", "mixer.") if kind is NEMOTRON_H else ("input_layernorm", "self_attn.")
        inside = _latent(recipe) if recipe.mla else _grouped(recipe)
    elif letter == "M":
        norm, branch = ("norm", "mixer.") if kind is NEMOTRON_H else ("input_layernorm", "mamba.")
        inside = _scan(recipe)
    else:
        norm, branch = ("norm", "mixer.") if kind is NEMOTRON_H else ("post_attention_layernorm", "")
        inside = _mlp(kind, recipe)
    return [_one(f"{norm}.weight", "norm.weight"), *(_within(link, branch, "mixer.") for link in inside)]


def _one(theirs: str, ours: str, put: Move | None = None, take: Move | None = None) -> Link:
    return Link(theirs=theirs, ours=(ours,), put=put, take=take)


def _within(link: Link, there: str, here: str) -> Link:
    ours = tuple(f"{here}{name}" for name in link.ours)
    return Link(theirs=f"{there}{link.theirs}", ours=ours, sizes=link.sizes, dim=link.dim, put=link.put, take=link.take)


def _grouped(recipe: Recipe) -> list[Link]:
    found = [_one(f"{name}_proj.weight", f"w{name}.weight") for name in "qkvo"]
    return found + (
        [_one(f"{name}.weight", f"{name}.weight") for name in ("q_norm", "k_norm")] if recipe.qk_norm else []
    )


def _latent(recipe: Recipe) -> list[Link]:
    mla = recipe.mla
    assert mla is not None
    order = torch.arange(mla.qk_rope).view(2, -1).T.reshape(-1)  # 0, d/2, 1, d/2 + 1, …

    def rows(last: Tensor, before: int) -> Tensor:
        return torch.cat([torch.arange(before), before + last])

    queries, keys = mla.qk_head, mla.kv_lora
    found = [
        _one("q_a_proj.weight", "wq_a.weight"),
        _one("q_a_layernorm.weight", "q_norm.weight"),
        _turned("q_b_proj.weight", "wq_b.weight", rows(order, queries), recipe.heads),
        _turned("kv_a_proj_with_mqa.weight", "wkv_a.weight", rows(order, keys)),
        _one("kv_a_layernorm.weight", "kv_norm.weight"),
        _one("kv_b_proj.weight", "wkv_b.weight"),
        _one("o_proj.weight", "wo.weight"),
    ]
    if recipe.dsa is None:
        return found
    dsa = recipe.dsa
    first = torch.arange(dsa.index_head_dim).roll(mla.qk_rope)  # the last qk_rope rows come first there
    return [
        *found,
        _turned("indexer.wq_b.weight", "indexer.wq.weight", first, dsa.index_heads),
        *(
            _turned(f"indexer.{name}", f"indexer.{name}", first)
            for name in ("wk.weight", "k_norm.weight", "k_norm.bias")
        ),
        _one("indexer.weights_proj.weight", "indexer.weights.weight"),
    ]


def _turned(theirs: str, ours: str, order: Tensor, heads: int = 1) -> Link:
    """Rows in another order, in each head."""

    def by(rows: Tensor) -> Move:
        return lambda value: value.reshape(heads, len(rows), -1)[:, rows.to(value.device)].reshape(value.shape)

    return _one(theirs, ours, by(order), by(order.argsort()))


def _mlp(kind: Kind, recipe: Recipe) -> list[Link]:
    moe = recipe.moe
    if moe is None and kind is GRANITE:
        return _fused("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight", "", recipe.ffn_hidden)
    prefix = "" if kind is NEMOTRON_H else "mlp."
    if moe is None:
        return _halves(prefix, "", gated=recipe.activation == "swiglu")
    outer = "block_sparse_moe." if kind is GRANITE else prefix
    router = "router" if kind is GRANITE else "gate"
    found = [_one(f"{outer}{router}.weight", "router.weight")]
    if moe.selection_bias:
        found.append(_one(f"{outer}{router}.e_score_correction_bias", "router.bias"))
    if recipe.activation == "swiglu":
        sizes = (moe.expert_hidden, moe.expert_hidden)
        both = Link(theirs=f"{outer}experts.gate_up_proj", ours=("experts.w1", "experts.w3"), sizes=sizes, dim=1)
        found += [both, _one(f"{outer}experts.down_proj", "experts.w2")]
    else:
        found += [_one("experts.up_proj", "experts.w1"), _one("experts.down_proj", "experts.w2")]
    if moe.shared_hidden and kind is GRANITE:
        names = ("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight")
        return found + _fused(*names, "shared.", moe.shared_hidden)
    if moe.shared_hidden:
        found += _halves(f"{prefix}shared_experts.", "shared.", gated=recipe.activation == "swiglu")
    return found


def _halves(there: str, here: str, *, gated: bool) -> list[Link]:
    names = {"gate": "w1", "up": "w3", "down": "w2"} if gated else {"up": "w1", "down": "w2"}
    return [_one(f"{there}{other}_proj.weight", f"{here}{name}.weight") for other, name in names.items()]


def _fused(into: str, out: str, here: str, width: int) -> list[Link]:
    both = Link(theirs=into, ours=(f"{here}w1.weight", f"{here}w3.weight"), sizes=(width, width))
    return [both, _one(out, f"{here}w2.weight")]


def _scan(recipe: Recipe) -> list[Link]:
    mamba = recipe.mamba
    inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
    parts = (inner, grouped, grouped)
    names = ("x", "b", "c")
    return [
        Link(
            theirs="in_proj.weight",
            ours=("wz.weight", *(f"w{name}.weight" for name in names), "wdt.weight"),
            sizes=(inner, *parts, mamba.heads),
        ),
        Link(
            theirs="conv1d.weight",
            ours=tuple(f"conv_{name}.weight" for name in names),
            sizes=parts,
            put=lambda value: value.unsqueeze(1),
            take=lambda value: value.reshape(-1, CONV_WIDTH),
        ),
        Link(theirs="conv1d.bias", ours=tuple(f"conv_{name}.bias" for name in names), sizes=parts),
        *(_one(name, name) for name in ("A_log", "D", "dt_bias")),
        _one("norm.weight", "out_norm.weight"),
        _one("out_proj.weight", "wo.weight"),
    ]


def to_theirs(tensors: Mapping[str, Tensor], known: Iterable[Link]) -> dict[str, Tensor]:
    """Full tensors under transformers' names. Those that are not there whole are left out."""
    found = {}
    for link in known:
        if all(name in tensors for name in link.ours):
            joined = torch.cat([tensors[name] for name in link.ours], dim=link.dim)
            found[link.theirs] = link.put(joined) if link.put else joined
    return found


def to_canonical(tensors: Mapping[str, Tensor], known: Iterable[Link]) -> dict[str, Tensor]:
    """The inverse. Tensors without a canonical name are left out."""
    found: dict[str, Tensor] = {}
    for link in known:
        if link.theirs in tensors:
            value = tensors[link.theirs]
            whole = link.take(value) if link.take else value
            parts = torch.split(whole, list(link.sizes), dim=link.dim) if link.sizes else (whole,)
            found |= {name: part.contiguous() for name, part in zip(link.ours, parts, strict=True)}
    return found


def role_of(name: str) -> Role:
    """The role of the parameter with a canonical name."""
    last = name.rsplit(".", 1)[-1]
    if name in ("embedding.weight", "head.weight"):
        return "embedding" if name.startswith("embedding") else "head"
    if last in ("A_log", "D", "dt_bias"):
        return "ssm"
    if ".conv_" in name:
        return "bias" if last == "bias" else "conv"
    if "norm." in name:
        return "norm"
    if last == "bias":
        return "bias"
    if ".router." in name:
        return "router"
    return "expert" if ".experts." in name else "matrix"
