"""What a rank holds of a tensor, and tensors that lie as another does. On one rank all of it is the tensor itself.

Asked for a copy or for zeros, DTensor works out for each shape where the result lies, and a run forgets what an earlier
one worked out (parallel/mesh.py): that takes a hundred times as long as the copy. What lies as another tensor needs no
working out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def from_local_part(part: Tensor, like: DTensor) -> DTensor:
    """The tensor of which each rank holds a part, as it holds one of `like`. Nothing is sent, worked out or recorded.

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
    """A copy that lies as the tensor does."""
    return from_local_part(tensor.to_local().clone(), tensor) if isinstance(tensor, DTensor) else tensor.clone()


@torch.no_grad()
def placed_zeros(tensor: Tensor) -> Tensor:
    """Zeros that lie as a tensor does."""
    if isinstance(tensor, DTensor):
        return from_local_part(torch.zeros_like(tensor.to_local()), tensor)
    return torch.zeros_like(tensor)
