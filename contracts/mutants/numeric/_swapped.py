"""A reference of several ranks that is built with one of its functions exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from contracts.stacks.reference.model import Model
from contracts.stacks.reference.parallel_trainer import ParallelTrainer


class Swapped(ParallelTrainer):
    """Builds with another function of that name in a module."""

    of: ClassVar[Any]
    name: ClassVar[str]
    other: ClassVar[Callable[..., Any]]

    def build(self) -> Model:
        with swapped(self.of, self.name, type(self).other):
            return super().build()


@contextmanager
def swapped(of: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    former = getattr(of, name)
    setattr(of, name, other)
    try:
        yield
    finally:
        setattr(of, name, former)
