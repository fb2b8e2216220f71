"""Maps canonical weights (spec/blocks.py) to Megatron's parameters and back, full and sharded over ranks.

linear_qkv    by KV group: the group's query heads, its key, its value
linear_fc1    [gate; up] with swiglu, ours w1 and w3; tensor parallel shards each of the two
experts       one module per expert, ours stacked
in_proj       of M: z, x, B, C and dt stacked; conv1d: x, B and C, with one input channel
eh_proj       [token; hidden state] along its columns, ours the other way round
MLA           elements 2i and 2i + 1 of the part with rope rotate together, ours i and i + d/2
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from contracts.spec import NotOffered, Recipe
from contracts.stacks.kit.links import (
    Link,
    depthwise,
    grouped,
    joined,
    of_heads,
    ordered,
    paired,
    same,
    to_canonical,
    to_theirs,
)
from contracts.stacks.megatron.shims import has_convolution_module, layer_of_a_head


def pieces(recipe: Recipe, letters: str, places: list[int]) -> dict[str, Link]:
    """Every tensor of a model by Megatron's name; `places` are the Megatron layers of our layers."""
    found = [
        same("embedding.word_embeddings.weight", "embedding.weight"),
        same(f"decoder.{'final_norm' if 'M' in letters else 'final_layernorm'}.weight", "norm.weight"),
    ]
    if recipe.untied_embeddings:
        found.append(same("output_layer.weight", "head.weight"))
    for number, (letter, place) in enumerate(zip(letters, places, strict=True)):
        found += block_pieces(recipe, letter, f"decoder.layers.{place}.", f"layers.{number}.")
    for depth in range(recipe.mtp.depth if recipe.mtp else 0):
        found += _ahead(recipe, f"mtp.layers.{depth}.", f"mtp.{depth}.")
    return {each.theirs: each for each in found}


def _ahead(recipe: Recipe, theirs: str, ours: str) -> list[Link]:
    """One depth of multi-token prediction; its layer is dense."""
    dense, layer = replace(recipe, moe=None), f"{theirs}{layer_of_a_head()}."
    return [
        same(f"{theirs}hnorm.weight", f"{ours}hidden_norm.weight"),
        same(f"{theirs}enorm.weight", f"{ours}token_norm.weight"),
        _swapped(f"{theirs}eh_proj.weight", f"{ours}projection.weight"),
        same(f"{theirs}final_layernorm.weight", f"{ours}norm.weight"),
        *block_pieces(dense, "A", layer, f"{ours}attention."),
        *block_pieces(dense, "E", layer, f"{ours}mlp."),
    ]


def _swapped(theirs: str, ours: str) -> Link:
    """A matrix whose columns have their halves the other way round."""

    def swap(held: Tensor) -> Tensor:
        return torch.cat(tuple(reversed(held.chunk(2, 1))), 1)

    return replace(same(theirs, ours), pack=lambda given: swap(given[0]), unpack=lambda held: (swap(held),))


def block_pieces(recipe: Recipe, letter: str, theirs: str, ours: str) -> list[Link]:
    """The tensors of one block, including the norm before it.

    Raises:
        NotOffered: for a letter that Megatron's transformer layers do not have.
    """
    if letter == "A":
        norm = same(f"{theirs}input_layernorm.weight", f"{ours}norm.weight")
        inner = _latent if recipe.mla else _grouped
        return [norm, *inner(recipe, f"{theirs}self_attention.", f"{ours}mixer.")]
    if letter == "E":
        norm = same(f"{theirs}pre_mlp_layernorm.weight", f"{ours}norm.weight")
        theirs, ours = f"{theirs}mlp.", f"{ours}mixer."
        inside = _experts(recipe, theirs, ours) if recipe.moe else _dense(recipe, theirs, ours)
        return [norm, *inside]
    if letter == "M":
        return [
            same(f"{theirs}norm.weight", f"{ours}norm.weight"),
            *_mamba(recipe, f"{theirs}mixer.", f"{ours}mixer."),
        ]
    raise NotOffered(f"Megatron-Core's transformer layers have no {letter} block", "case")


def _grouped(recipe: Recipe, theirs: str, ours: str) -> list[Link]:
    dim, names = recipe.head_dim, tuple(f"{ours}{name}.weight" for name in ("wq", "wk", "wv"))
    sizes = (recipe.heads // recipe.kv_groups * dim, dim, dim)
    found = [
        grouped(f"{theirs}linear_qkv.weight", names, recipe.kv_groups, sizes),
        same(f"{theirs}linear_proj.weight", f"{ours}wo.weight"),
    ]
    if "attention" in recipe.biases:
        biases = tuple(name.replace(".weight", ".bias") for name in names)
        found.append(grouped(f"{theirs}linear_qkv.bias", biases, recipe.kv_groups, sizes))
        found.append(same(f"{theirs}linear_proj.bias", f"{ours}wo.bias"))
    if recipe.qk_norm:
        found.append(same(f"{theirs}q_layernorm.weight", f"{ours}q_norm.weight"))
        found.append(same(f"{theirs}k_layernorm.weight", f"{ours}k_norm.weight"))
    return found


def _latent(recipe: Recipe, theirs: str, ours: str) -> list[Link]:
    mla = recipe.mla
    assert mla is not None
    return [
        same(f"{theirs}linear_q_down_proj.weight", f"{ours}wq_a.weight"),
        same(f"{theirs}q_layernorm.weight", f"{ours}q_norm.weight"),
        ordered(f"{theirs}linear_q_up_proj.weight", f"{ours}wq_b.weight",
                of_heads(paired(mla.qk_rope, mla.qk_head), recipe.heads)),
        ordered(f"{theirs}linear_kv_down_proj.weight", f"{ours}wkv_a.weight", paired(mla.qk_rope, mla.kv_lora)),
        same(f"{theirs}kv_layernorm.weight", f"{ours}kv_norm.weight"),
        same(f"{theirs}linear_kv_up_proj.weight", f"{ours}wkv_b.weight"),
        same(f"{theirs}linear_proj.weight", f"{ours}wo.weight"),
    ]  # fmt: skip


def _mlp(recipe: Recipe, theirs: str, ours: str, ending: str, width: int) -> list[Link]:
    """linear_fc1 and linear_fc2; `ending` is the suffix after w1, w2, w3 in our names."""
    names = tuple(f"{ours}{name}{ending}" for name in (("w1", "w3") if recipe.activation == "swiglu" else ("w1",)))
    return [
        joined(f"{theirs}linear_fc1.weight", names, [width] * len(names)),
        same(f"{theirs}linear_fc2.weight", f"{ours}w2{ending}"),
    ]


def _dense(recipe: Recipe, theirs: str, ours: str) -> list[Link]:
    found = _mlp(recipe, theirs, ours, ".weight", recipe.ffn_hidden)
    names = [f"{ours}w{number}.bias" for number in "132"]
    return found + (_biases(recipe, theirs, names, recipe.ffn_hidden) if "mlp" in recipe.biases else [])


def _biases(recipe: Recipe, theirs: str, ours: list[str], width: int) -> list[Link]:
    """Of linear_fc1 and linear_fc2; ours belong to the gate, up and down projections."""
    names = ours[:2] if recipe.activation == "swiglu" else ours[:1]
    return [
        joined(f"{theirs}linear_fc1.bias", names, [width] * len(names)),
        same(f"{theirs}linear_fc2.bias", ours[2]),
    ]


def _experts(recipe: Recipe, theirs: str, ours: str) -> list[Link]:
    moe = recipe.moe
    assert moe is not None
    found = [same(f"{theirs}router.weight", f"{ours}router.weight")]
    if "router" in recipe.biases:
        found.append(same(f"{theirs}router.bias", f"{ours}router.logit_bias"))
    if moe.selection_bias:
        found.append(same(f"{theirs}router.expert_bias", f"{ours}router.bias"))
    for expert in range(moe.experts):
        one = f"{theirs}{EXPERTS}{expert}."
        found += _mlp(recipe, one, f"{ours}experts.", f".{expert}", moe.expert_hidden)
        if "experts" in recipe.biases:
            names = [f"{ours}experts.b{number}.{expert}" for number in "132"]
            found += _biases(recipe, one, names, moe.expert_hidden)
    if moe.shared_hidden:
        found += _mlp(recipe, f"{theirs}shared_experts.", f"{ours}shared.", ".weight", moe.shared_hidden)
    return found


def _mamba(recipe: Recipe, theirs: str, ours: str) -> list[Link]:
    mamba = recipe.mamba
    inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
    of_projection = [inner, inner, grouped, grouped, mamba.heads]
    of_convolution = [inner, grouped, grouped]
    projection = tuple(f"{ours}{name}.weight" for name in ("wz", "wx", "wb", "wc", "wdt"))
    weights = tuple(f"{ours}conv_{name}.weight" for name in "xbc")
    biases = tuple(f"{ours}conv_{name}.bias" for name in "xbc")
    convolution = f"{theirs}conv1d{'.' if has_convolution_module() else '_'}"
    return [
        joined(f"{theirs}in_proj.weight", projection, of_projection),
        depthwise(f"{convolution}weight", weights, of_convolution),
        joined(f"{convolution}bias", biases, of_convolution),
        *(same(f"{theirs}{name}", f"{ours}{name}") for name in ("A_log", "D", "dt_bias")),
        same(f"{theirs}norm.weight", f"{ours}out_norm.weight"),
        same(f"{theirs}out_proj.weight", f"{ours}wo.weight"),
    ]


EXPERTS = "experts.local_experts."
"""What the name of an expert's tensor has; experts have a tensor parallel of their own."""
_STACKED = tuple(f".experts.{kind}{number}" for kind in "bw" for number in "123")


def alone(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors with one tensor per expert: `layers.1.mixer.experts.w1.11`."""
    found: dict[str, Tensor] = {}
    for name, each in ours.items():
        if name.endswith(_STACKED):
            found |= {f"{name}.{expert}": matrix for expert, matrix in enumerate(each)}
        else:
            found[name] = each
    return found


def stacked(single: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors with stacked experts: the inverse of `alone`."""
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, each in single.items():
        head, _, last = name.rpartition(".")
        if head.endswith(_STACKED):
            experts.setdefault(head, {})[int(last)] = each
        else:
            found[name] = each
    return found | {name: torch.stack([each[n] for n in sorted(each)]) for name, each in experts.items()}


def theirs_of(table: Mapping[str, Link], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors by Megatron's names, from those of ours that are given."""
    return to_theirs(alone(ours), table.values())


def ours_of(table: Mapping[str, Link], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors by our names."""
    return stacked(to_canonical(theirs, table.values()))


def cut(piece: Link, whole: Tensor, shape: Iterable[int], index: int) -> Tensor:
    """A rank's part of a full tensor, from the part's shape and its index in the group that shards it."""
    local = tuple(shape)
    if tuple(whole.shape) == local:
        return whole
    dim, parts = _cut_along(tuple(whole.shape), local)
    matrices = torch.split(whole, _rows(piece, whole.shape[0])) if dim == 0 else (whole,)
    return torch.cat([each.chunk(parts, dim)[index] for each in matrices], dim)


def put_together(piece: Link, parts: list[Tensor], shape: Iterable[int]) -> Tensor:
    """The full tensor from the parts of a group's ranks, in rank order."""
    whole = tuple(shape)
    if tuple(parts[0].shape) == whole:
        return parts[0]
    dim, _ = _cut_along(whole, tuple(parts[0].shape))
    if dim:
        return torch.cat(parts, dim)
    matrices = zip(*(torch.split(part, _rows(piece, part.shape[0])) for part in parts), strict=True)
    return torch.cat([torch.cat(each) for each in matrices])


def _rows(piece: Link, rows: int) -> list[int]:
    """The number of rows of each of the matrices that are stacked in `rows` rows."""
    return [share * rows // sum(piece.sizes) for share in piece.sizes]


def _cut_along(whole: tuple[int, ...], local: tuple[int, ...]) -> tuple[int, int]:
    """The one dimension in which a part is smaller than the full tensor, and the number of parts."""
    differing = [dim for dim, (all_of, part) in enumerate(zip(whole, local, strict=True)) if all_of != part]
    if len(differing) != 1 or whole[differing[0]] % local[differing[0]]:
        raise AssertionError(f"a part of {local} is no cut of {whole} along one dimension")
    return differing[0], whole[differing[0]] // local[differing[0]]
