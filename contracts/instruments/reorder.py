"""Runs torch with products and sums in another order, so that results differ only by rounding.

Another BLAS, vector width or thread count adds the same terms in another order. Such a stack is equally correct, and
the contracts must hold for it. `Reordered` is a dispatch mode that changes the order on any machine, forward and
backward. A verdict that changes under it depends on rounding.

It does not change integers, tensors without data (meta and fake ones), attention with dropout, convolutions, compiled
code, and sums over ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor  # nothing public names it; where it is in 2.1 to 2.13
from torch.utils._python_dispatch import TorchDispatchMode

Order = Literal["reversed", "blocked", "pairwise", "unfused"]
ORDERS: tuple[Order, ...] = ("reversed", "blocked", "pairwise", "unfused")
BLOCK = 3
"""Terms in a block. Small, so that the short sums of small models have several blocks."""
UNFUSED_ELEMENTS = 2**22
"""Maximal elements of a product that is computed as multiply and add; a larger one is added in blocks instead."""

_aten = torch.ops.aten
_Handler = Callable[..., Any]


class Reordered(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Products and sums in another order.

    Args:
        order: `reversed`, last term first; `blocked`, in blocks of a few terms; `pairwise`, halves of halves;
            `unfused`, products as multiply and add, and functions by other formulas (1/sqrt for rsqrt).

    `torch.utils._python_dispatch` has a private name but is documented (torch 2.1 to 2.13). Only a dispatch mode also
    sees the products of a backward pass.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.order: Order = order
        self.seen = 0
        """How many products and sums were done in another order; one that saw none proves nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if types and all(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **named)  # there is nothing to add up; NotImplemented would skip the active fake mode
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # a DTensor; its operators on plain tensors arrive here again
        handler = _HANDLERS.get(func)
        first = next((each for each in args if isinstance(each, Tensor)), None)
        if handler is None or first is None or not first.is_floating_point() or first.is_meta or not first.numel():
            return func(*args, **named)
        self.seen += 1
        return handler(self.order, func, *args, **named)


def _wide(value: Tensor) -> Tensor:
    """Like every kernel, accumulates half precision in float32 and rounds once."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def _contract(order: Order, left: Tensor, right: Tensor) -> Tensor:
    """(…, M, K) @ (…, K, N), with the K terms added in another order."""
    a, b, inner = _wide(left), _wide(right), left.shape[-1]
    if order == "reversed":
        out = a.flip(-1) @ b.flip(-2)
    elif order == "pairwise":
        out = _halves(a, b)
    elif order == "unfused" and a.shape[:-2].numel() * a.shape[-2] * inner * b.shape[-1] <= UNFUSED_ELEMENTS:
        out = (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)
    else:
        step = max(BLOCK, -(-inner // 8))
        out = a[..., :step] @ b[..., :step, :]
        for at in range(step, inner, step):
            out = out + a[..., at : at + step] @ b[..., at : at + step, :]
    return out.to(left.dtype)


def _halves(a: Tensor, b: Tensor) -> Tensor:
    inner = a.shape[-1]
    if inner <= BLOCK:
        return a @ b
    middle = max(inner // 2, -(-inner // 16))
    return _halves(a[..., :middle], b[..., :middle, :]) + _halves(a[..., middle:], b[..., middle:, :])


def _add_up(order: Order, value: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """The sum over some dims, with its terms in another order, in the dtype of the accumulation."""
    wide = _wide(value)
    if order == "reversed":
        return wide.flip(tuple(dims)).sum(tuple(dims), keepdim=keepdim)
    for dim in dims:
        wide = _along(order, wide, dim)
    return wide if keepdim else wide.sum(tuple(dims))  # each of length one: nothing is added


def _along(order: Order, wide: Tensor, dim: int) -> Tensor:
    length = wide.shape[dim]
    if order == "pairwise" and length > BLOCK:
        middle = length // 2
        left, right = wide.narrow(dim, 0, middle), wide.narrow(dim, middle, length - middle)
        return _along(order, left, dim) + _along(order, right, dim) if length <= 1024 else (
            left.sum(dim, keepdim=True) + right.sum(dim, keepdim=True)
        )  # fmt: skip
    step = max(BLOCK, -(-length // 8))
    parts = [wide.narrow(dim, at, min(step, length - at)).sum(dim, keepdim=True) for at in range(0, length, step)]
    out = parts[-1]
    for part in reversed(parts[:-1]):
        out = out + part
    return out


def _dims(value: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == []:
        return tuple(range(value.dim()))
    return tuple(each % value.dim() for each in ([dim] if isinstance(dim, int) else dim)) if value.dim() else ()


def _sum(
    order: Order, func: Any, value: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    wanted = dtype or value.dtype
    held = value if dtype is None else value.to(dtype)
    return _add_up(order, held, _dims(value, dim), keepdim).to(wanted) if value.dim() else func(held)


def _mean(
    order: Order, func: Any, value: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    wanted, dims = dtype or value.dtype, _dims(value, dim)
    held = value if dtype is None else value.to(dtype)
    count = 1
    for each in dims:
        count *= value.shape[each]
    return (_add_up(order, held, dims, keepdim) / count).to(wanted) if value.dim() else func(held)


def _mm(order: Order, func: Any, left: Tensor, right: Tensor) -> Tensor:
    return _contract(order, left, right)


def _mv(order: Order, func: Any, left: Tensor, right: Tensor) -> Tensor:
    return _contract(order, left, right.unsqueeze(-1)).squeeze(-1)


def _dot(order: Order, func: Any, left: Tensor, right: Tensor) -> Tensor:
    return _contract(order, left.unsqueeze(0), right.unsqueeze(-1)).reshape(())


def _addmm(
    order: Order, func: Any, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = _contract(order, _wide(left), _wide(right)) * alpha
    return (product + _wide(bias) * beta if beta else product).to(left.dtype)


def _flipped(order: Order, func: Any, value: Tensor, dim: int, *rest: Any) -> Any:
    """A function that accumulates along one dim, run from the other end."""
    return func(value.flip(dim), dim, *rest).flip(dim) if value.dim() else func(value, dim, *rest)


def _flipped_backward(order: Order, func: Any, grad: Tensor, output: Tensor, dim: int, *rest: Any) -> Any:
    if not grad.dim():
        return func(grad, output, dim, *rest)
    return func(grad.flip(dim), output.flip(dim), dim, *rest).flip(dim)


def _logsumexp(order: Order, func: Any, value: Tensor, dim: Any, keepdim: bool = False) -> Any:
    return func(value.flip(_dims(value, dim)), dim, keepdim)


def _norm(order: Order, func: Any, value: Tensor, *rest: Any, **named: Any) -> Any:
    return func(value.flip(tuple(range(value.dim()))), *rest, **named) if not rest[1:] else func(value, *rest, **named)


def _index_add(order: Order, func: Any, value: Tensor, dim: int, index: Tensor, source: Tensor, **named: Any) -> Any:
    return func(value, dim, index.flip(0), source.flip(dim) if source.dim() else source, **named)


def _embedding_backward(order: Order, func: Any, grad: Tensor, indices: Tensor, *rest: Any) -> Any:
    return func(grad.reshape(-1, grad.shape[-1]).flip(0), indices.reshape(-1).flip(0), *rest)


def _attention(
    order: Order, func: Any, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0, is_causal: bool = False,
    *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The fused kernel of a CPU, written out; all shapes are (batch, heads, tokens, head dim)."""
    if dropout_p:
        return func(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    scores = _scores(order, query, key, is_causal, attn_mask, scale)
    out = _contract(order, _weights(scores), _wide(value))
    return torch.empty_like(query).copy_(out), scores.logsumexp(-1)  # laid out as the kernel's


def _attention_backward(
    order: Order, func: Any, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout_p:
        saved = (query, key, value, out, logsumexp)
        return func(grad, *saved, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    q, k, v, upstream = (_wide(each) for each in (query, key, value, grad))
    weights = _weights(_scores(order, query, key, is_causal, attn_mask, scale))
    # Where a token sees only itself, these two sums have the same terms. Kernels add them in two orders, or by accident
    # in one, and then the difference is zero; here each has another one.
    reach = _contract(order, upstream, v.mT)
    terms = upstream * _wide(out)
    forward, backward = (each.cumsum(-1)[..., -1:] for each in (terms, terms.flip(-1)))
    mean = torch.where((reach == forward).any(-1, keepdim=True), backward, forward)
    of_scores = weights * (reach - mean) * _scale(query, scale)
    found = _contract(order, of_scores, k), _contract(order, of_scores.mT, q), _contract(order, weights.mT, upstream)
    return tuple(each.to(query.dtype) for each in found)


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _scores(
    order: Order, query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    scores = _contract(order, _wide(query), _wide(key).mT) * _scale(query, scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores if mask is None else scores + mask


def _weights(scores: Tensor) -> Tensor:
    """Softmax over the last dim; 0 for a token that sees none, as the kernel has it."""
    sees_none = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(sees_none, 0)


def _rsqrt(order: Order, func: Any, value: Tensor) -> Any:
    return (1 / _wide(value).sqrt()).to(value.dtype) if order == "unfused" else func(value)


def _sigmoid(order: Order, func: Any, value: Tensor) -> Any:
    return (1 / (1 + (-_wide(value)).exp())).to(value.dtype) if order == "unfused" else func(value)


def _silu(order: Order, func: Any, value: Tensor) -> Any:
    wide = _wide(value)
    return (wide / (1 + (-wide).exp())).to(value.dtype) if order == "unfused" else func(value)


_HANDLERS: dict[Any, _Handler] = {
    _aten.mm.default: _mm, _aten.bmm.default: _mm, _aten.mv.default: _mv, _aten.dot.default: _dot,
    _aten.addmm.default: _addmm, _aten.baddbmm.default: _addmm,
    _aten.sum.default: _sum, _aten.sum.dim_IntList: _sum, _aten.mean.default: _mean, _aten.mean.dim: _mean,
    _aten._softmax.default: _flipped, _aten._log_softmax.default: _flipped,
    _aten._softmax_backward_data.default: _flipped_backward,
    _aten._log_softmax_backward_data.default: _flipped_backward,
    _aten.logsumexp.default: _logsumexp,
    _aten.linalg_vector_norm.default: _norm,
    _aten.index_add.default: _index_add, _aten.index_add_.default: _index_add,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    _aten.rsqrt.default: _rsqrt, _aten.sigmoid.default: _sigmoid, _aten.silu.default: _silu,
}  # fmt: skip
