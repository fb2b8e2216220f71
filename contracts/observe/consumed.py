"""What a step consumes: batches of which epoch, and labels of which weight; and what an evaluation must not draw."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

LOADER = DataLoader
ITERATOR = _BaseDataLoaderIter  # private, of every loader; its `_next_index` draws a batch; torch 1.2 - 2.13
LABELS = frozenset({torch.ops.aten.nll_loss_backward.default, torch.ops.aten.nll_loss2d_backward.default})
"""What every cross-entropy of torch ends in, when it runs eagerly."""
DROPOUT = frozenset({torch.ops.aten.native_dropout.default, torch.ops.aten.bernoulli_.float})
"""What every dropout of torch ends in, that of its attention on a CPU too."""
NONE, MEAN = 0, 1


@dataclass(kw_only=True)
class Epochs:
    """How often torch's loader began anew while the model trained, and what it has drawn since.

    Args:
        epoch: 0 as long as no loader has begun, or where several of them are in use.
        batch: how many batches were drawn in it, those that are fetched ahead too.
        last: the number of the last one; 0 where nobody knows it.
    """

    epoch: int = 0
    batch: int = 0
    last: int = 0
    several: bool = False
    loader: weakref.ref[Any] | None = field(default=None)

    def begin(self, loader: Any) -> None:
        """A loader begins."""
        known = self.loader() if self.loader is not None else None
        self.several = self.several or (self.loader is not None and known is not loader)
        self.loader = weakref.ref(loader)
        self.epoch, self.batch = 0 if self.several else self.epoch + 1, 0
        try:
            self.last = len(loader)
        except TypeError:  # of a dataset without a length
            self.last = 0


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels that one loss counts: of how many classes, how many, and the gradient of the backward pass's scalar by
    the loss of one of them."""

    classes: int
    counted: Tensor
    weight: Tensor
    dtype: str


def weighed(arguments: Sequence[Any]) -> Labels | None:
    """The inputs of the backward pass of a loss over labels (gradient, scores, target, weights of classes, reduction,
    the number that is ignored, their weight); None where its labels weigh differently."""
    gradient, scores, target, _, reduction, ignored, total = arguments[:7]
    counts = target != ignored
    weight = gradient
    if reduction == NONE:
        each = gradient[counts]
        each = each[each != 0]
        if not each.numel() or bool((each - each[0]).abs().max() > 1e-3 * each[0].abs()):
            return None
        weight, counts = each[0], (gradient != 0) & counts
    elif reduction == MEAN:
        weight = gradient / total
    dtype = str(gradient.dtype).removeprefix("torch.")
    return Labels(classes=scores.shape[-1 if scores.dim() < 3 else 1], counted=counts.sum(), weight=weight, dtype=dtype)
