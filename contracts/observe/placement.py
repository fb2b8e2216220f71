"""Where the values that this rank holds lie in the whole tensor.

Plain tensors, DTensors (whatever they are sharded by) and ranges of a flattened tensor (FSDP1). A tensor that nobody
can place has no pieces; the trace then has only its norm, and counts it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from contracts.observe.sketch import Piece, span, whole


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """What this rank holds of a tensor.

    Args:
        local: its values.
        shape: of the whole tensor.
        pieces: where the values lie; None where nobody can say.
        part: the same words on ranks that hold the same part, and different ones on others.
        first: whether this rank is the first of those that hold this part, so that it writes the sketch.
        partial: whether the tensor is the sum of what the ranks hold.
    """

    local: Tensor
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] | None
    part: str = ""
    first: bool = True
    partial: bool = False


def held(tensor: Tensor) -> Held:
    """What this rank holds of a plain tensor or of a DTensor. No collective is issued."""
    if isinstance(tensor, DTensor):
        return _of_dtensor(tensor)
    if kind := unknown(tensor):
        return unplaced(tensor, kind)
    if tensor.is_complex():  # two numbers beside each other
        tensor = torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return Held(local=tensor, shape=tuple(tensor.shape), pieces=whole(tensor.shape))


def unplaced(tensor: Tensor, why: str) -> Held:
    """What is held of a tensor that nobody can place."""
    shape = () if is_lazy(tensor) or tensor.is_nested else tuple(tensor.shape)
    return Held(local=tensor, shape=shape, pieces=None, part=why)


def unknown(tensor: Tensor) -> str:
    """The kind of a tensor whose numbers are not read here, as a segmentation fault or an error may come of it; empty
    for any other."""
    odd = tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta
    if isinstance(tensor, DTensor) or (type(tensor) is Tensor and not odd):
        return ""
    kinds = {"not initialised": is_lazy(tensor), "nested": tensor.is_nested, "quantised": tensor.is_quantized,
             "meta": tensor.is_meta, str(tensor.layout): tensor.layout is not torch.strided,
             type(tensor).__name__: is_traceable_wrapper_subclass(tensor)}  # fmt: skip
    return next((kind for kind, true in kinds.items() if true), "")


def flat_range(local: Tensor, shape: Sequence[int], start: int) -> Held:
    """A contiguous range of a flattened tensor, as FSDP1 holds it: `local` is [start : start + numel] of it."""
    numel = local.numel()
    pieces = tuple(_boxes(tuple(shape), start, start + numel, 0))
    return Held(local=local, shape=tuple(shape), pieces=pieces, part=f"{start}:{start + numel}")


def of_flat(piece: Piece, begin: int, end: int) -> tuple[Piece, ...]:
    """The part of one of its pieces in a range of the flattened local tensor; the range is then the local tensor."""
    low, high = max(begin, piece.start), min(end, piece.start + piece.numel)
    return tuple(
        Piece(start=box.start + low - begin,
              indices=tuple(mine[at] for mine, at in zip(piece.indices, box.indices, strict=True)))
        for box in _boxes(piece.shape, low - piece.start, high - piece.start, 0)
    )  # fmt: skip


def _of_dtensor(tensor: DTensor) -> Held:
    local, mesh, shape = tensor.to_local(), tensor.device_mesh, tuple(tensor.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # this rank is not in the mesh
        return Held(local=local, shape=shape, pieces=(), part="outside")
    for axis, each in enumerate(tensor.placements):
        if isinstance(each, Partial) and each.reduce_op == "avg":
            local = local / mesh.size(axis)
        elif not isinstance(each, (Shard, _StridedShard, Replicate, Partial)) or (
            isinstance(each, Partial) and each.reduce_op != "sum"
        ):
            return unplaced(tensor.to_local(), str(each))
    sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
    piece, part, first = _placed(shape, tuple(tensor.placements), sizes, tuple(coordinate))
    if piece.shape != tuple(local.shape):
        return Held(local=local, shape=shape, pieces=None, part=f"local shape {tuple(local.shape)}")
    partial = any(isinstance(each, Partial) for each in tensor.placements)
    return Held(local=local, shape=shape, pieces=(piece,), part=part, first=first, partial=partial)


@lru_cache(maxsize=4096)
def _placed(
    shape: tuple[int, ...], placements: tuple[Placement, ...], sizes: tuple[int, ...], coordinate: tuple[int, ...]
) -> tuple[Piece, str, bool]:
    """The piece of this rank, what names it, and whether this rank is the first that holds it."""
    indices, part, first = [span(size) for size in shape], [], True
    for axis, (placement, at) in enumerate(zip(placements, coordinate, strict=True)):
        if isinstance(placement, (Shard, _StridedShard)):
            indices[placement.dim] = _split(placement, indices[placement.dim], sizes[axis], at)
        if isinstance(placement, Replicate):
            first = first and at == 0
        else:
            part.append(f"{axis}.{at}")
    return Piece(start=0, indices=tuple(indices)), ",".join(part), first


def _split(placement: Shard | _StridedShard, indices: Tensor, chunks: int, at: int) -> Tensor:
    """The indices of one chunk, by DTensor's own split: those of a strided shard are not contiguous."""
    along = (
        type(placement)(0, split_factor=placement.split_factor) if isinstance(placement, _StridedShard) else Shard(0)
    )
    parts, _ = along._split_tensor(indices, chunks, with_padding=False, contiguous=False)  # private; torch 2.5 - 2.13
    return parts[at] if at < len(parts) else indices[:0]


def _boxes(shape: tuple[int, ...], start: int, end: int, local: int) -> list[Piece]:
    """A range of a flattened tensor as boxes: parts of rows at both ends, and whole rows between them."""
    if start >= end:
        return []
    if len(shape) <= 1:
        return [Piece(start=local, indices=(torch.arange(start, end),) if shape else ())]
    row = math.prod(shape[1:])
    found = []
    first_whole, last_whole = -(-start // row), end // row
    if first_whole > last_whole:  # within one row
        return _in_row(shape, start // row, start, end, local)
    if start < first_whole * row:
        found += _in_row(shape, start // row, start, first_whole * row, local)
    if first_whole < last_whole:
        rest = tuple(span(size) for size in shape[1:])
        at = local + first_whole * row - start
        found.append(Piece(start=at, indices=(torch.arange(first_whole, last_whole), *rest)))
    if last_whole * row < end:
        found += _in_row(shape, last_whole, last_whole * row, end, local + last_whole * row - start)
    return found


def _in_row(shape: tuple[int, ...], number: int, start: int, end: int, local: int) -> list[Piece]:
    row = math.prod(shape[1:])
    inner = _boxes(shape[1:], start - number * row, end - number * row, local)
    return [Piece(start=each.start, indices=(torch.tensor([number]), *each.indices)) for each in inner]
