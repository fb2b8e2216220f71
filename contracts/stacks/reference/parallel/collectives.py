"""Differentiable collectives: what each does in the forward pass, and what it does to gradients.

                    forward          backward
    copy_to_ranks   nothing          sum over ranks: each rank used the same tensor in its own way
    all_reduce      sum over ranks   nothing: each rank gets the gradient of the sum
    all_gather      all-gather       reduce-scatter
    reduce_scatter  reduce-scatter   all-gather
    all_to_all      all-to-all       all-to-all back
    split_rows      own rows         all-gather: every rank gets the gradient of all rows
    gather_rows     all-gather       own rows
    recv            from a rank      the gradient goes back to that rank
    send            to a rank        the gradient from that rank is added

`torch.distributed` differentiates none of these: its in-place calls drop the graph without a warning. The
differentiable ones are in `torch.distributed._functional_collectives`, and only this file names them (2.11 to 2.13).
Their results are waited for at once: compiled code that gets an unfinished tensor loses its gradient (2.13).

N rows · n rows of one rank
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

# Their names since 2.13, and before.
if hasattr(functional, "all_gather_single"):
    started_all_gather, started_reduce_scatter = functional.all_gather_single, functional.reduce_scatter_single
else:
    started_all_gather, started_reduce_scatter = functional.all_gather_tensor, functional.reduce_scatter_tensor

Group = Any
"""A process group; torch's stubs type what makes one as Any."""


def all_gather(x: Tensor, dim: int, group: Group) -> Tensor:
    return _finished(started_all_gather(x.contiguous(), dim, group))


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    return _finished(started_reduce_scatter(x.contiguous(), "sum", dim, group))


def all_to_all(x_ND: Tensor, received: list[int], sent: list[int], group: Group) -> Tensor:
    """Rows to and from each rank of a group, in their order; both lists count rows by rank."""
    return _finished(functional.all_to_all_single(x_ND.contiguous(), received, sent, group))


def _finished(x: Tensor) -> Tensor:
    held: Tensor = functional.wait_tensor(x)  # type: ignore[no-untyped-call]  # torch's; x.wait() drops the graph
    return held


def copy_to_ranks(x: Tensor, group: Group) -> Tensor:
    held: Tensor = _CopyToRanks.apply(x, group)  # type: ignore[no-untyped-call]  # torch's
    return held


def all_reduce(x: Tensor, group: Group) -> Tensor:
    held: Tensor = _AllReduce.apply(x, group)  # type: ignore[no-untyped-call]
    return held


def split_rows(x_ND: Tensor, group: Group) -> Tensor:
    """This rank's rows, consecutive; ranks differ by one row at most."""
    held: Tensor = _SplitRows.apply(x_ND, group)  # type: ignore[no-untyped-call]
    return held


def gather_rows(x_nD: Tensor, rows: int, group: Group) -> Tensor:
    """The inverse of `split_rows`; `rows` is their number over all ranks."""
    held: Tensor = _GatherRows.apply(x_nD, rows, group)  # type: ignore[no-untyped-call]
    return held


def recv(like: Tensor, peer: int, group: Group) -> Tensor:
    """A tensor from another rank (its number in the group), of the shape and dtype of `like`."""
    held: Tensor = _Recv.apply(torch.zeros_like(like).requires_grad_(), peer, group)  # type: ignore[no-untyped-call]
    return held


def send(x: Tensor, peer: int, group: Group) -> Tensor:
    """x itself, which is also sent to another rank. Use the result: that rank's gradient arrives through it."""
    held: Tensor = _Send.apply(x, peer, group)  # type: ignore[no-untyped-call]
    return held


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x itself; its gradient is multiplied by a factor."""
    held: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return held


def sum_over_ranks(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, without a gradient. Returns x itself where there is no group."""
    if group is None:
        return x
    held = x.detach().clone()
    dist.all_reduce(held, group=group)
    return held


BUCKET = 2**23  # elements: 32 MiB in float32, as DDP takes 25


def all_reduce_in_place(tensors: Iterable[Tensor], group: Group) -> None:
    """Sum tensors over ranks in place, many in one message. All ranks give the same shapes."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for each in tensors:
        by_dtype.setdefault(each.dtype, []).append(each)
    for held in by_dtype.values():
        for bucket in _buckets(held):
            if len(bucket) == 1 and bucket[0].is_contiguous():
                dist.all_reduce(bucket[0], group=group)
                continue
            flat = torch.cat([each.reshape(-1) for each in bucket])
            dist.all_reduce(flat, group=group)
            for each, summed in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
                each.copy_(summed.view(each.shape))


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Runs of tensors of `BUCKET` elements at most; a larger one is a bucket of its own."""
    found: list[list[Tensor]] = []
    size = 0
    for each in tensors:
        if not found or size + each.numel() > BUCKET:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.numel()
    return found


def all_gather_list(x: Tensor, group: Group) -> list[Tensor]:
    """Every rank's tensor, by rank, without a gradient. All ranks give the same shape."""
    held = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(held, x.contiguous(), group=group)
    return held


def own_rows(x_ND: Tensor, group: Group) -> Tensor:
    return x_ND.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]


def all_rows(x_nD: Tensor, rows: int, group: Group) -> Tensor:
    """All-gather of rows that `own_rows` split: padded to the longest rank, padding removed."""
    size = dist.get_world_size(group)
    longest = -(-rows // size)
    padded = torch.cat([x_nD, x_nD.new_zeros(longest - len(x_nD), *x_nD.shape[1:])])
    lengths = [len(part) for part in torch.empty(rows, 0).tensor_split(size)]
    return torch.cat([part[:length] for part, length in zip(all_gather_list(padded, group), lengths, strict=True)])


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return sum_over_ranks(grads[0], ctx.group), None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        held = sum_over_ranks(x, group)
        return held.view_as(held)  # compiled by 2.11, what changed in place gets no gradient (pytorch#180642)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _SplitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, group: Group) -> Tensor:
        ctx.rows, ctx.group = len(x_ND), group
        return own_rows(x_ND, group).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_rows(grads[0], ctx.rows, ctx.group), None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nD: Tensor, rows: int, group: Group) -> Tensor:
        ctx.group = group
        return all_rows(x_nD, rows, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return own_rows(grads[0], ctx.group).contiguous(), None, None


class _Recv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blank: Tensor, peer: int, group: Group) -> Tensor:
        ctx.peer, ctx.group = peer, group
        return _from(blank, peer, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        _to(grads[0], ctx.peer, ctx.group)
        return None, None, None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peer: int, group: Group) -> Tensor:
        ctx.peer, ctx.group = peer, group
        _to(x, peer, group)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] + _from(grads[0], ctx.peer, ctx.group), None, None


def _to(x: Tensor, peer: int, group: Group) -> None:
    _message(dist.isend, x.contiguous(), peer, group)


def _from(like: Tensor, peer: int, group: Group) -> Tensor:
    held = torch.empty_like(like, memory_format=torch.contiguous_format)
    _message(dist.irecv, held, peer, group)
    return held


def _message(op: Any, x: Tensor, peer: int, group: Group) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(op, x, group=group, group_peer=peer)]):
        work.wait()


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()  # a view would be one that FSDP2 warns of

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None
