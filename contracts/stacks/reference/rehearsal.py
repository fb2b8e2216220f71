"""What the reference answers about a step at its true size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.spec.errors import NotOffered, refuse
from contracts.spec.recipe import Recipe
from contracts.spec.traffic import Rehearsal, Routing
from contracts.spec.training import Execution
from contracts.stacks.reference.assembled import Assembled

if TYPE_CHECKING:
    from contracts.stacks.reference.trainer import Trainer


class RehearsalSide(Assembled):
    """The answer of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"rehearse"})

    def trainer_of(self, execution: Execution) -> type[Trainer]:
        raise NotImplementedError  # TrainingSide's

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        import torch.distributed as dist

        from contracts.stacks.reference import rehearsed

        if not 0 <= rank < execution.world:
            raise refuse("rank", rank, f"must lie in 0 … {execution.world - 1}", "count ranks from 0")
        if execution.compile != "none":
            raise NotOffered("what a compiled graph issues is not seen; rehearse the execution uncompiled")
        if dist.is_initialized():
            raise NotOffered("a rehearsal needs a process without a world")
        kind, parts = self.trainer_of(execution), self.parts()
        return rehearsed.rehearsed(recipe, execution, rank, routing, kind, parts)  # type: ignore[arg-type]  # a class is
