"""Maps canonical weights (spec/blocks.py) to Megatron's parameters and back, full and sharded over ranks.

A `Piece` is one of Megatron's tensors, made of one or several of ours by rearranging rows only. So gradients and the
optimizer's moments map like weights.

    linear_qkv    by KV group: the group's query heads, its key, its value
    linear_fc1    [gate; up] with swiglu, ours w1 and w3; tensor parallel shards each of the two
    experts       one module per expert, ours stacked
    in_proj       of M: z, x, B, C and dt stacked; conv1d: x, B and C, with one input channel
    MLA           elements 2i and 2i + 1 of the part with rope rotate together, ours i and i + d/2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Recipe
from contracts.stacks.megatron.shims import older


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One of Megatron's tensors.

    Args:
        theirs: its name in a full model, with layers and experts counted over all ranks.
        ours: our tensors that it is made of.
        pack: ours → theirs. unpack: theirs → ours.
        stacked: the proportional rows of stacked matrices that tensor parallel shards separately; one entry if not
            stacked.
        expert: whether the experts' tensor parallel shards it.
    """

    theirs: str
    ours: tuple[str, ...]
    pack: Callable[[list[Tensor]], Tensor]
    unpack: Callable[[Tensor], list[Tensor]]
    stacked: tuple[int, ...] = (1,)
    expert: bool = False


def pieces(recipe: Recipe, letters: str, places: list[int]) -> dict[str, Piece]:
    """Every tensor of a model by Megatron's name; `places` are the Megatron layers of our layers."""
    found = [
        _same("embedding.word_embeddings.weight", "embedding.weight"),
        _same(f"decoder.{'final_norm' if 'M' in letters else 'final_layernorm'}.weight", "norm.weight"),
    ]
    if recipe.untied_embeddings:
        found.append(_same("output_layer.weight", "head.weight"))
    for number, (letter, place) in enumerate(zip(letters, places, strict=True)):
        found += block_pieces(recipe, letter, f"decoder.layers.{place}.", f"layers.{number}.")
    return {each.theirs: each for each in found}


def block_pieces(recipe: Recipe, letter: str, theirs: str, ours: str) -> list[Piece]:
    """The tensors of one block, including the norm before it.

    Raises:
        NotOffered: for a letter that Megatron's transformer layers do not have.
    """
    if letter == "A":
        norm = _same(f"{theirs}input_layernorm.weight", f"{ours}norm.weight")
        inner = _latent if recipe.mla else _grouped
        return [norm, *inner(recipe, f"{theirs}self_attention.", f"{ours}mixer.")]
    if letter == "E":
        norm = _same(f"{theirs}pre_mlp_layernorm.weight", f"{ours}norm.weight")
        inner = _experts if recipe.moe else _dense
        return [norm, *inner(recipe, f"{theirs}mlp.", f"{ours}mixer.")]
    if letter == "M":
        return [
            _same(f"{theirs}norm.weight", f"{ours}norm.weight"),
            *_mamba(recipe, f"{theirs}mixer.", f"{ours}mixer."),
        ]
    raise NotOffered(f"Megatron-Core's transformer layers have no {letter} block", "case")


def _same(theirs: str, ours: str) -> Piece:
    return Piece(theirs=theirs, ours=(ours,), pack=lambda given: given[0], unpack=lambda held: [held])


def _grouped(recipe: Recipe, theirs: str, ours: str) -> list[Piece]:
    groups, dim = recipe.kv_groups, recipe.head_dim
    sizes = [recipe.heads // groups * dim, dim, dim]  # of one group: its query heads, its key, its value

    def pack(given: list[Tensor]) -> Tensor:
        return torch.cat([each.reshape(groups, -1, each.shape[-1]) for each in given], 1).flatten(0, 1)

    def unpack(held: Tensor) -> list[Tensor]:
        return [each.flatten(0, 1) for each in torch.split(held.reshape(groups, -1, held.shape[-1]), sizes, 1)]

    names = tuple(f"{ours}{name}.weight" for name in ("wq", "wk", "wv"))
    found = [
        Piece(theirs=f"{theirs}linear_qkv.weight", ours=names, pack=pack, unpack=unpack),
        _same(f"{theirs}linear_proj.weight", f"{ours}wo.weight"),
    ]
    if recipe.qk_norm:
        found.append(_same(f"{theirs}q_layernorm.weight", f"{ours}q_norm.weight"))
        found.append(_same(f"{theirs}k_layernorm.weight", f"{ours}k_norm.weight"))
    return found


def _latent(recipe: Recipe, theirs: str, ours: str) -> list[Piece]:
    mla = recipe.mla
    assert mla is not None
    return [
        _same(f"{theirs}linear_q_down_proj.weight", f"{ours}wq_a.weight"),
        _same(f"{theirs}q_layernorm.weight", f"{ours}q_norm.weight"),
        _turning(f"{theirs}linear_q_up_proj.weight", f"{ours}wq_b.weight", recipe.heads, mla.qk_head, mla.qk_rope),
        _turning(f"{theirs}linear_kv_down_proj.weight", f"{ours}wkv_a.weight", 1, mla.kv_lora, mla.qk_rope),
        _same(f"{theirs}kv_layernorm.weight", f"{ours}kv_norm.weight"),
        _same(f"{theirs}linear_kv_up_proj.weight", f"{ours}wkv_b.weight"),
        _same(f"{theirs}linear_proj.weight", f"{ours}wo.weight"),
    ]


def _turning(theirs: str, ours: str, heads: int, still: int, turning: int) -> Piece:
    """The rows of each head. The last `turning` rows form pairs, which are apart in ours and adjacent in theirs."""
    order = [*range(still), *(still + half + pair for pair in range(turning // 2) for half in (0, turning // 2))]
    rows = [head * (still + turning) + place for head in range(heads) for place in order]
    back = sorted(range(len(rows)), key=rows.__getitem__)
    return Piece(theirs=theirs, ours=(ours,), pack=lambda given: given[0][rows], unpack=lambda held: [held[back]])


def _mlp(recipe: Recipe, theirs: str, ours: str, ending: str, *, expert: bool = False) -> list[Piece]:
    """linear_fc1 and linear_fc2; `ending` is the suffix after w1, w2, w3 in our names."""
    gated = recipe.activation == "swiglu"
    names = tuple(f"{ours}{name}{ending}" for name in (("w1", "w3") if gated else ("w1",)))
    first = Piece(
        theirs=f"{theirs}linear_fc1.weight", ours=names, stacked=(1,) * len(names), expert=expert,
        pack=torch.cat, unpack=lambda held: list(held.chunk(len(names))),
    )  # fmt: skip
    second = f"{ours}w2{ending}"
    return [first, Piece(theirs=f"{theirs}linear_fc2.weight", ours=(second,), expert=expert,
                         pack=lambda given: given[0], unpack=lambda held: [held])]  # fmt: skip


def _dense(recipe: Recipe, theirs: str, ours: str) -> list[Piece]:
    return _mlp(recipe, theirs, ours, ".weight")


def _experts(recipe: Recipe, theirs: str, ours: str) -> list[Piece]:
    moe = recipe.moe
    assert moe is not None
    found = [_same(f"{theirs}router.weight", f"{ours}router.weight")]
    if moe.selection_bias:
        found.append(_same(f"{theirs}router.expert_bias", f"{ours}router.bias"))
    for expert in range(moe.experts):
        found += _mlp(recipe, f"{theirs}experts.local_experts.{expert}.", f"{ours}experts.", f".{expert}", expert=True)
    if moe.shared_hidden:
        found += _mlp(recipe, f"{theirs}shared_experts.", f"{ours}shared.", ".weight")
    return found


def _mamba(recipe: Recipe, theirs: str, ours: str) -> list[Piece]:
    mamba = recipe.mamba
    inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
    of_projection = [inner, inner, grouped, grouped, mamba.heads]
    of_convolution = [inner, grouped, grouped]
    projection = tuple(f"{ours}{name}.weight" for name in ("wz", "wx", "wb", "wc", "wdt"))
    weights = tuple(f"{ours}conv_{name}.weight" for name in "xbc")
    biases = tuple(f"{ours}conv_{name}.bias" for name in "xbc")
    convolution = f"{theirs}conv1d{'.' if older() else '_'}"
    return [
        Piece(theirs=f"{theirs}in_proj.weight", ours=projection, stacked=tuple(of_projection), pack=torch.cat,
              unpack=lambda held: list(torch.split(held, of_projection))),
        Piece(theirs=f"{convolution}weight", ours=weights, stacked=tuple(of_convolution),
              pack=lambda given: torch.cat(given)[:, None],
              unpack=lambda held: list(torch.split(held[:, 0], of_convolution))),
        Piece(theirs=f"{convolution}bias", ours=biases, stacked=tuple(of_convolution), pack=torch.cat,
              unpack=lambda held: list(torch.split(held, of_convolution))),
        *(_same(f"{theirs}{name}", f"{ours}{name}") for name in ("A_log", "D", "dt_bias")),
        _same(f"{theirs}norm.weight", f"{ours}out_norm.weight"),
        _same(f"{theirs}out_proj.weight", f"{ours}wo.weight"),
    ]  # fmt: skip


_STACKED = (".experts.w1", ".experts.w2", ".experts.w3")


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


def theirs_of(table: Mapping[str, Piece], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors by Megatron's names, from those of ours that are given."""
    single = alone(ours)
    return {
        name: piece.pack([single[each] for each in piece.ours])
        for name, piece in table.items()
        if all(each in single for each in piece.ours)
    }


def ours_of(table: Mapping[str, Piece], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors by our names."""
    single: dict[str, Tensor] = {}
    for name, held in theirs.items():
        piece = table[name]
        single |= dict(zip(piece.ours, piece.unpack(held), strict=True))
    return stacked(single)


def cut(piece: Piece, whole: Tensor, shape: Iterable[int], index: int) -> Tensor:
    """A rank's part of a full tensor, from the part's shape and its index in the group that shards it."""
    local = tuple(shape)
    if tuple(whole.shape) == local:
        return whole
    dim, parts = _cut_along(tuple(whole.shape), local)
    matrices = torch.split(whole, _rows(piece, whole.shape[0])) if dim == 0 else (whole,)
    return torch.cat([each.chunk(parts, dim)[index] for each in matrices], dim)


def joined(piece: Piece, parts: list[Tensor], shape: Iterable[int]) -> Tensor:
    """The full tensor from the parts of a group's ranks, in rank order."""
    whole = tuple(shape)
    if tuple(parts[0].shape) == whole:
        return parts[0]
    dim, _ = _cut_along(whole, tuple(parts[0].shape))
    if dim:
        return torch.cat(parts, dim)
    matrices = zip(*(torch.split(part, _rows(piece, part.shape[0])) for part in parts), strict=True)
    return torch.cat([torch.cat(each) for each in matrices])


def _rows(piece: Piece, rows: int) -> list[int]:
    """The number of rows of each of the matrices that are stacked in `rows` rows."""
    return [share * rows // sum(piece.stacked) for share in piece.stacked]


def _cut_along(whole: tuple[int, ...], local: tuple[int, ...]) -> tuple[int, int]:
    """The one dimension in which a part is smaller than the full tensor, and the number of parts."""
    differing = [dim for dim, (all_of, part) in enumerate(zip(whole, local, strict=True)) if all_of != part]
    if len(differing) != 1 or whole[differing[0]] % local[differing[0]]:
        raise AssertionError(f"a part of {local} is no cut of {whole} along one dimension")
    return differing[0], whole[differing[0]] // local[differing[0]]
