"""Shared by the blocks: packing, block output, linear layer, RMS norm, and what a block may ask of the table of parts.

B sequences · T tokens · D hidden
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from contracts.spec import Mode, Recipe

State = Mapping[str, Tensor]
"""Recurrent state by name; empty means zero."""


class Packing(NamedTuple):
    """Where documents lie in packed sequences.

    `documents_BT` numbers them along each row; `positions_BT` counts tokens from the start of each. Both are int64.
    `boundless` says that no row holds more than one document, which a block may use and need not. If a rank has a
    run of each row, `first` is the place of its first token, and `row_BS` has the documents of all tokens. `padding_BT`
    marks positions that hold no token, for a router.
    """

    documents_BT: Tensor
    positions_BT: Tensor
    boundless: bool = False
    first: int = 0
    row_BS: Tensor | None = None
    padding_BT: Tensor | None = None

    @property
    def whole_row(self) -> Tensor:
        """The document of every token of the row."""
        return self.documents_BT if self.row_BS is None else self.row_BS


class Output(NamedTuple):
    """What a block gives: the branch, its auxiliary losses, its recurrent state, and what it routed or selected.

    Made only by its constructor: after a graph break, torch 2.11 cannot rebuild one that `_replace` made.
    """

    y_BTD: Tensor
    losses: dict[str, Tensor] = {}  # noqa: RUF012  # never written to
    state: dict[str, Tensor] = {}  # noqa: RUF012
    seen: dict[str, Tensor] = {}  # noqa: RUF012


def packing(tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Packing:
    """The packing of a batch; without document numbers each row is one document."""
    batch, length = tokens_BT.shape[:2]
    index_T = torch.arange(length, device=tokens_BT.device)
    if documents_BT is None:
        whole = index_T.expand(batch, length)
        return Packing(documents_BT=torch.zeros_like(whole), positions_BT=whole, boundless=True)
    first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    start_BT = torch.where(first_BT, index_T, 0).cummax(dim=1).values
    return Packing(documents_BT=documents_BT, positions_BT=index_T - start_BT)


Piece = tuple[int, int]
"""Which of how many equal parts of a tensor's rows."""


def local(parameter: Tensor, summed: bool = True, piece: Piece | None = None) -> Tensor:
    """What this rank computes with of a parameter: its shard, or its copy where the ranks of an axis hold copies.

    Args:
        summed: whether the gradients of copies add up, because each rank put other tokens or other heads through its
            own. Otherwise all ranks computed the same, and each has the whole gradient already.
        piece: the rows that this rank uses, where it holds more than it uses.
    """
    held = parameter
    if isinstance(parameter, DTensor):
        copied = Partial() if summed else Replicate()
        held = parameter.to_local(grad_placements=[copied if at.is_replicate() else at for at in parameter.placements])
    return held if piece is None else held.chunk(piece[1])[piece[0]]


class Linear(nn.Linear):
    """A matrix (out, in) and perhaps a bias, held in float32 and applied in the dtype of the activations.

    `summed` and `piece` are arguments of `local`.
    """

    adds: bool = True
    """Whether this rank adds the bias; one rank does where outputs are summed over ranks."""

    summed: bool = True
    piece: Piece | None = None

    fp8: nn.Module | None
    """Who multiplies instead, where the recipe has the matrix in FP8 (blocks/fp8.py)."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.register_module("fp8", None)

    def forward(self, input: Tensor) -> Tensor:
        if self.fp8 is not None:
            product: Tensor = self.fp8(input, self.weight)
        else:
            product = F.linear(input, local(self.weight, self.summed, self.piece).to(input.dtype))
        return product if self.bias is None else self.biased(product, self.bias)

    def biased(self, product: Tensor, bias: Tensor) -> Tensor:
        return product + local(bias, self.summed, self.piece).to(product.dtype) * float(self.adds)


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dim, computed in float32 at least and returned in the dtype of x."""

    summed: bool = True

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * local(self.weight, self.summed)).to(x.dtype)


MakeBlock = Callable[[Recipe, "PartsInterface"], Any]
"""A block's class. Which one it is depends on the table, so the caller annotates what it needs."""


class LossWeights(Protocol):
    """A class that knows the coefficients of its auxiliary losses."""

    @staticmethod
    def weight_of(recipe: Recipe, loss: str) -> float: ...


class PartsInterface(Protocol):
    """Classes by role, as `parts.Parts` holds them."""

    @property
    def norm(self) -> Callable[[int, float], RMSNorm]: ...
    @property
    def attention(self) -> MakeBlock: ...
    @property
    def latent_attention(self) -> MakeBlock: ...
    @property
    def indexer(self) -> MakeBlock: ...
    @property
    def mlp(self) -> Callable[[Recipe, int], nn.Module]: ...
    @property
    def router(self) -> MakeBlock: ...
    @property
    def experts(self) -> MakeBlock: ...
    @property
    def moe(self) -> LossWeights: ...
    @property
    def streams(self) -> MakeBlock: ...
    @property
    def layer(self) -> Callable[..., Any]: ...
    @property
    def prediction(self) -> MakeBlock: ...
    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module: ...
