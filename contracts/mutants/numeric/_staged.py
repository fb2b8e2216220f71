"""A reference whose pipeline is another."""

from __future__ import annotations

from typing import ClassVar

from contracts.stacks.reference.pipeline import Pipeline, Stage
from contracts.stacks.reference.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.stack import Reference


class Staged(Reference):
    """The reference, with the trainer, the stages or the pipeline that is named exchanged."""

    trains: ClassVar[type[PipelineTrainer]] = PipelineTrainer
    stage: ClassVar[type[Stage]] = Stage
    runs: ClassVar[type[Pipeline]] = Pipeline

    def pipeline_trainer(self) -> type[PipelineTrainer]:
        return type("Exchanged", (self.trains,), {"stage_class": self.stage, "pipeline_class": self.runs})
