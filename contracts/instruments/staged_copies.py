"""The copies on the host that the staged group hands to gloo: of which tensors, in which dtype and shape."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

AS_THEY_ARE = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool,
)  # fmt: skip
"""What gloo knows. Another dtype travels as the one of its size in `OF_SIZE`, and is not reduced."""
OF_SIZE = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}
Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # a tensor and its copy


def tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors in the arguments of a call."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def contiguous(tensor: torch.Tensor) -> bool:
    """Whether NCCL takes a tensor."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    other = formats.get(tensor.dim())
    return tensor.is_contiguous() or (other is not None and tensor.is_contiguous(memory_format=other))


def host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy; whoever gets it has waited for what the current stream was given before."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())


def carriable(copy: torch.Tensor) -> torch.Tensor:
    """A copy in a dtype that gloo knows."""
    return copy if copy.dtype in AS_THEY_ARE else copy.view(OF_SIZE.get(copy.element_size(), copy.dtype))


def copied(value: Any, copies: Pairs, *, reduces: bool, flat: bool) -> Any:
    """The argument of a call with a copy for each tensor, which `copies` gets beside the tensor."""
    if isinstance(value, torch.Tensor):
        copy = host(value).reshape(-1) if flat else host(value)
        copies.append((value, copy))
        return copy if reduces else carriable(copy)
    if isinstance(value, (list, tuple)):
        return [copied(each, copies, reduces=reduces, flat=flat) for each in value]
    return value


def scaled(options: Any, copies: Pairs) -> Any:
    """The options of a call; those for a scaled sum become those for a sum, of copies that are scaled."""
    operation = getattr(options, "reduceOp", None)
    if operation is None or operation != dist.ReduceOp.PREMUL_SUM:
        return options
    _, factor = operation.__getstate__()
    for _, copy in copies:
        copy.mul_(factor)
    plain = type(options)()
    for field in ("timeout", "rootRank", "rootTensor"):
        if hasattr(options, field):
            setattr(plain, field, getattr(options, field))
    plain.reduceOp = dist.ReduceOp.SUM
    return plain
