"""A rank's local part of a tensor, new tensors with the placements of another, full tensors gathered from all ranks.

For a copy or for zeros DTensor infers the placements of the result for each shape, and a new run does not have what an
earlier one inferred (parallel/mesh.py). That takes a hundred times as long as the copy. A tensor that takes over the
placements of another needs no inference.

`DTensor.full_tensor` sends each tensor by itself. A model has some hundred tensors, and an observed run gathers all of
them, with gradients and optimizer state. On ranks that share a processor a message costs a millisecond at any size.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from contracts.stacks.reference.parallel.collectives import all_gather_list


def local_part(tensor: Tensor) -> Tensor:
    """This rank's local part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def from_local_part(part: Tensor, like: DTensor) -> DTensor:
    """A DTensor from each rank's local part, placed as `like` is. Nothing is sent, inferred or recorded.

    `from_local` takes ten times as long, most of it to describe anew what `_spec` describes. That attribute and the
    constructor are private to DTensor; FSDP uses both likewise. Seen in torch 2.13.
    """
    if part.dtype != like.dtype:
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
    return DTensor(part, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]  # torch's


@torch.no_grad()
def placed_copy(tensor: Tensor) -> Tensor:
    """A copy with the same placements."""
    return from_local_part(tensor.to_local().clone(), tensor) if isinstance(tensor, DTensor) else tensor.clone()


@torch.no_grad()
def placed_zeros(tensor: Tensor) -> Tensor:
    """Zeros with the placements of a tensor."""
    if isinstance(tensor, DTensor):
        return from_local_part(torch.zeros_like(tensor.to_local()), tensor)
    return torch.zeros_like(tensor)


Dims = tuple[int, ...]
"""Dims of a mesh."""
Line = Sequence[int]
"""Which lines of a dim of a tensor; a range where they follow one another."""


def sharded_mesh_dims(tensor: DTensor) -> Dims:
    """The mesh dims over which a tensor is sharded; over the others ranks hold copies."""
    return tuple(dim for dim, at in enumerate(tensor.placements) if not at.is_replicate())


@torch.no_grad()
def shard_like(whole: Tensor, like: DTensor) -> Tensor:
    """This rank's shard of a full tensor, placed as `like` is. Nothing is sent."""
    mesh = like.device_mesh
    at = {dim: (mesh.size(dim), mesh.get_local_rank(dim)) for dim in sharded_mesh_dims(like)}
    return _select(whole, _lines(like, at)).clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def full_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors by name. A replicated tensor is read from this rank, so that a copy that drifted shows.

    Every rank of a mesh calls this with the same names.
    """
    found: dict[str, Tensor] = {}
    together: dict[tuple[DeviceMesh, Dims, torch.dtype], dict[str, DTensor]] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor.detach()
        elif any(at.is_partial() for at in tensor.placements):
            found[name] = tensor.full_tensor().detach()
        elif not (dims := sharded_mesh_dims(tensor)):
            found[name] = tensor.to_local().detach()
        else:
            together.setdefault((tensor.device_mesh, dims, tensor.dtype), {})[name] = tensor
    for (mesh, dims, _), alike in together.items():
        found |= zip(alike, _joined([*alike.values()], mesh, dims), strict=True)
    return {name: found[name] for name in tensors}


def _joined(tensors: Sequence[DTensor], mesh: DeviceMesh, dims: Dims) -> list[Tensor]:
    """Full tensors of one dtype, sharded over the same dims of one mesh."""
    ranks = [mesh.size(dim) for dim in dims]
    places = list(product(*map(range, ranks)))
    lines = {
        at: [_lines(tensor, dict(zip(dims, zip(ranks, at, strict=True), strict=True))) for tensor in tensors]
        for at in places
    }
    sizes = {at: [math.prod(map(len, each)) for each in of] for at, of in lines.items()}
    mine = torch.cat([local_part(tensor).reshape(-1) for tensor in tensors])
    flat = torch.cat([mine, mine.new_zeros(max(map(sum, sizes.values())) - len(mine))])
    for dim in reversed(dims):  # the last dim of a mesh is the innermost
        flat = torch.cat(all_gather_list(flat, mesh.get_group(dim)))
    wholes = [torch.empty(tensor.shape, dtype=tensor.dtype, device=mine.device) for tensor in tensors]
    for at, row in zip(places, flat.view(len(places), -1), strict=True):
        parts = row[: sum(sizes[at])].split(sizes[at])
        for into, held, where in zip(wholes, parts, lines[at], strict=True):
            _put(held, into, where)
    return wholes


def _lines(tensor: DTensor, at: Mapping[int, tuple[int, int]]) -> list[Line]:
    """For each dim of a tensor, which of its lines the rank has that stands at some place of the mesh.

    Args:
        at: by dim of the mesh, how many ranks it has, and which of them.
    """
    lines: list[Line] = [range(size) for size in tensor.shape]
    for dim, (ranks, rank) in at.items():
        placement: Any = tensor.placements[dim]  # a Shard or a strided one
        lines[placement.dim] = _kept(lines[placement.dim], getattr(placement, "split_factor", 1), ranks, rank)
    return lines


def _kept(line: Line, pieces: int, ranks: int, rank: int) -> Line:
    """The lines that a rank keeps: its chunk of them, as `torch.chunk` cuts; of lines that FSDP cut before another dim
    of the mesh cuts them into pieces, its chunk of each piece."""
    if pieces == 1:
        return _chunk(line, ranks, rank)
    return [each for piece in range(pieces) for each in _chunk(_chunk(line, pieces, piece), ranks, rank)]


def _chunk(line: Line, chunks: int, chunk: int) -> Line:
    size = -(-len(line) // chunks)
    return line[chunk * size : (chunk + 1) * size]


def _select(tensor: Tensor, lines: Sequence[Line]) -> Tensor:
    """Some lines of a tensor: of its own memory where they follow one another."""
    for dim, line in enumerate(lines):
        if isinstance(line, range):
            tensor = tensor.narrow(dim, line.start, len(line))
        else:
            tensor = tensor.index_select(dim, torch.tensor(line, dtype=torch.int64, device=tensor.device))
    return tensor


def _put(held: Tensor, into: Tensor, lines: Sequence[Line]) -> None:
    """Copy a part to its place in the whole."""
    held = held.view([len(line) for line in lines])
    if all(isinstance(line, range) for line in lines):
        _select(into, lines).copy_(held)
    else:
        into[torch.meshgrid(*(torch.tensor(line, dtype=torch.int64) for line in lines), indexing="ij")] = held
