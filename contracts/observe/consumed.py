"""What a step consumes: batches of which epoch, and labels of which weight; and what an evaluation must not draw."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

LOADER = DataLoader
ITERATOR = _BaseDataLoaderIter  # private, of every loader; its `_next_index` draws a batch; torch 1.2 - 2.13
LABELS = frozenset({torch.ops.aten.nll_loss_backward.default, torch.ops.aten.nll_loss2d_backward.default})
"""What every cross-entropy of torch ends in, when it runs eagerly."""
DROPOUT = frozenset({torch.ops.aten.native_dropout.default, torch.ops.aten.bernoulli_.float})
"""What every dropout of torch ends in, that of its attention on a CPU too."""
NONE, MEAN = 0, 1
MOST_NUMBERS = 4096


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rows of a dataset that a loader's subset has, as `random_split` draws them.

    Args:
        size: how many.
        shares: between how many ranks a sampler divides them; 1 if it does not.
        numbers: those in the dataset, in their order; of a large subset some, spread over it.
    """

    size: int
    shares: int
    numbers: tuple[int, ...]


@dataclass(kw_only=True)
class Epochs:
    """How often torch's loader began anew while the model trained, and what it has drawn since.

    Args:
        epoch: 0 as long as no loader has begun, or where several of them are in use.
        batch: how many batches were drawn in it, those that are fetched ahead too.
        last: the number of the last one; 0 where nobody knows it.
        split: what the latest loader draws from.
    """

    epoch: int = 0
    batch: int = 0
    last: int = 0
    several: bool = False
    loader: weakref.ref[Any] | None = field(default=None)
    split: Split | None = None

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


def split(loader: Any) -> Split | None:
    """The split that a loader draws from; None if its dataset is no subset."""
    held = loader.dataset
    if not isinstance(held, Subset):
        return None
    size = len(held)
    numbers = range(0, size, -(-size // MOST_NUMBERS) or 1)
    while isinstance(held, Subset):
        numbers, held = [int(held.indices[at]) for at in numbers], held.dataset  # type: ignore[assignment]
    shares = getattr(loader.sampler, "num_replicas", None) or getattr(loader.batch_sampler, "num_processes", None) or 1
    return Split(size=size, shares=int(shares), numbers=tuple(numbers))


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
