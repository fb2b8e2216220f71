"""A rank's local part of a tensor, and new tensors with the placements of another. On one rank: the tensor itself.

For a copy or for zeros DTensor infers the placements of the result for each shape, and a new run does not have what an
earlier one inferred (parallel/mesh.py). That takes a hundred times as long as the copy. A tensor that takes over the
placements of another needs no inference.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


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
