"""The base of all answers that compute: the table of parts, and what trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.spec import Execution

if TYPE_CHECKING:  # torch is loaded when something is computed, not when the stack is introduced
    from contracts.stacks.reference.model.parts import Parts
    from contracts.stacks.reference.training.trainer import Trainer


class BuiltOfParts:
    """Answers that are computed with a table of parts. A stack of your own overrides it."""

    def parts(self) -> Parts:
        """The classes everything is built of."""
        from contracts.stacks.reference.model.parts import PARTS

        return PARTS

    def trainer_of(self, execution: Execution) -> type[Trainer]:
        """The class that trains on one rank, on several, or on ranks that hold different layers."""
        if execution.world == 1:
            from contracts.stacks.reference.training.trainer import Trainer

            return Trainer
        if execution.degrees.pp == 1:
            from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer

            return ParallelTrainer
        from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer

        return PipelineTrainer
