"""Multi-rank trainers that build their model with one function patched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


def built_with(of: Any, name: str, other: Callable[..., Any]) -> type[ParallelTrainer]:
    """A trainer class that builds with attribute `name` of `of` replaced by `other`."""

    class Swapped(ParallelTrainer):
        def build(self) -> Model:
            with swapped(of, name, other):
                return super().build()

    return Swapped


@contextmanager
def swapped(of: Any, name: str, other: Any) -> Iterator[None]:
    former = getattr(of, name)
    setattr(of, name, other)
    try:
        yield
    finally:
        setattr(of, name, former)
