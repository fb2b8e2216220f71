"""Join and cut microbatches."""

from collections.abc import Sequence

import torch

from contracts.stacks.reference.training.trainer import Batch


def joined(window: Sequence[Batch]) -> Batch:
    """Concatenate microbatches of equal length into one batch."""
    held = [None if each[0] is None else torch.cat(each) for each in zip(*window, strict=True)]
    return Batch(*held)  # type: ignore[arg-type]  # only documents may be None


def cut(batch: Batch, parts: int) -> list[Batch]:
    """Split a batch into `parts` microbatches."""
    held = [[None] * parts if each is None else list(torch.tensor_split(each, parts)) for each in batch]
    return [Batch(*each) for each in zip(*held, strict=True)]
