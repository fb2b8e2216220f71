"""Whole tensors from what ranks hold of them, many in one message.

`DTensor.full_tensor` sends each tensor by itself. A model has some hundred of them, and a run that is looked at gathers
weights, gradients and state: on ranks that share a processor each message costs a millisecond, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from contracts.stacks.reference.placed import part

Dims = tuple[int, ...]
"""Dims of a mesh."""


def cut_over(tensor: DTensor) -> Dims:
    """The dims of its mesh over which a tensor is cut; over the others ranks hold copies."""
    return tuple(dim for dim, at in enumerate(tensor.placements) if not at.is_replicate())


@torch.no_grad()
def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, each whole. Of what ranks hold as copies, each takes its own: a copy that drifted shows.

    Every rank of a mesh calls this with the same names.
    """
    found: dict[str, Tensor] = {}
    together: dict[tuple[DeviceMesh, Dims, torch.dtype], list[str]] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor.detach()
        elif any(at.is_partial() for at in tensor.placements):
            found[name] = tensor.full_tensor().detach()
        elif not (dims := cut_over(tensor)):
            found[name] = tensor.to_local().detach()
        else:
            together.setdefault((tensor.device_mesh, dims, tensor.dtype), []).append(name)
    for (mesh, dims, _), names in together.items():
        cut = [tensors[name] for name in names]
        found |= zip(names, _joined(cut, mesh, dims), strict=True)
    return {name: found[name] for name in tensors}


def _joined(tensors: Sequence[Tensor], mesh: DeviceMesh, dims: Dims) -> list[Tensor]:
    """Tensors of one dtype that are cut over the same dims of one mesh."""
    ranks = [mesh.size(dim) for dim in dims]
    places = list(product(*map(range, ranks)))
    lines = {
        at: [_lines(tensor, dict(zip(dims, zip(ranks, at, strict=True), strict=True))) for tensor in tensors]
        for at in places
    }
    sizes = {at: [_elements(each) for each in of] for at, of in lines.items()}
    mine = torch.cat([part(tensor).reshape(-1) for tensor in tensors])
    flat = torch.cat([mine, mine.new_zeros(max(map(sum, sizes.values())) - len(mine))])
    for dim in reversed(dims):  # the last dim of a mesh is the innermost
        flat = _gathered(flat, mesh.get_group(dim))
    wholes = [torch.empty(tensor.shape, dtype=tensor.dtype, device=mine.device) for tensor in tensors]
    for at, row in zip(places, flat.view(len(places), -1), strict=True):
        parts = row[: sum(sizes[at])].split(sizes[at])
        for into, held, where in zip(wholes, parts, lines[at], strict=True):
            _put(held, into, where)
    return wholes


def _gathered(flat: Tensor, group: Any) -> Tensor:
    """What every rank of a group has, one behind the other."""
    every = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, flat, group=group)
    return torch.cat(every)


def _lines(tensor: Tensor, at: Mapping[int, tuple[int, int]]) -> list[Tensor]:
    """For each dim of a tensor, which of its lines the rank has that stands at some place of the mesh.

    Args:
        at: by dim of the mesh, how many ranks it has, and which of them.
    """
    assert isinstance(tensor, DTensor)
    lines = [torch.arange(size) for size in tensor.shape]
    for dim, (ranks, rank) in at.items():
        placement = tensor.placements[dim]
        along = _dim_of(placement)
        lines[along] = _kept(lines[along], placement, ranks, rank)
    return lines


def _dim_of(placement: Placement) -> int:
    """The dim of a tensor that a placement cuts."""
    return int(placement.dim)  # type: ignore[attr-defined]  # of Shard and of the strided one


def _kept(line_N: Tensor, placement: Placement, ranks: int, rank: int) -> Tensor:
    """The lines that a rank keeps: torch's chunk of them; of lines that another dim of the mesh is to cut afterwards
    and FSDP cut first, its chunk of each piece."""
    pieces = line_N.chunk(getattr(placement, "split_factor", 1))
    chunks = [piece.chunk(ranks) for piece in pieces]
    return torch.cat([each[rank] if rank < len(each) else line_N[:0] for each in chunks])


def _elements(lines: Sequence[Tensor]) -> int:
    return int(torch.tensor([len(line) for line in lines]).prod())


def _put(held: Tensor, into: Tensor, lines: Sequence[Tensor]) -> None:
    """Copy a part to its place in the whole."""
    shape = [len(line) for line in lines]
    if not held.numel():
        return
    if all(int(line[-1]) - int(line[0]) + 1 == len(line) for line in lines):
        for dim, line in enumerate(lines):
            into = into.narrow(dim, int(line[0]), len(line))
        into.copy_(held.view(shape))
    else:
        into[torch.meshgrid(*lines, indexing="ij")] = held.view(shape)
