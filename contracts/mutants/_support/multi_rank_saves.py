"""Base of mutants whose ranks train or save differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.optim.optimizer import Optimizer
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


class Spread(Exchanged):
    """The reference with its parts, its multi-rank trainer or that trainer's optimizer replaced."""

    trains: ClassVar[type[ParallelTrainer]] = ParallelTrainer
    moves: ClassVar[type[Optimizer] | None] = None
    exchange: ClassVar[Mapping[str, Any]] = {}

    def parallel_trainer(self) -> type[ParallelTrainer]:
        if self.moves is None:
            return self.trains
        return type("Moved", (self.trains,), {"optimizer_class": self.moves})
