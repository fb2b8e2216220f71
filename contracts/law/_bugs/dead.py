"""Stacks whose comparisons agree because nothing happens in them: they stand still, or every rank does everything.

They are no mutants of one contract. `python -m benchmarks.power` puts them before every contract about training.
"""

from dataclasses import replace

from contracts.spec import Degrees, Execution, Session, Trained
from contracts.stacks.reference.optim.optimizer import Optimizer
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Trainer


class StandsStill(Reference):
    """No step is ever taken, as under float16 where every one overflows: losses, gradients and norms are right."""

    def trainer_of(self, execution: Execution) -> type[Trainer]:
        return type("Still", (super().trainer_of(execution),), {"follow": lambda trainer, norm: False})


class LearnsNothing(Reference):
    """Every gradient is 0, as after a detached loss: only decay moves weights."""

    def trainer_of(self, execution: Execution) -> type[Trainer]:
        kind = super().trainer_of(execution)

        def unscale(trainer: Trainer) -> None:
            for parameter in trainer.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()

        return type("Deaf", (kind,), {"unscale": unscale})


class MovesByNothing(Reference):
    """The reported rate is right, and the one that moves weights is 0."""

    def trainer_of(self, execution: Execution) -> type[Trainer]:
        kind = super().trainer_of(execution)
        step = kind.optimizer_class.step

        def still(optimizer: Optimizer, lr: float) -> None:
            step(optimizer, 0.0)

        return type("Rated", (kind,), {"optimizer_class": type("Still", (kind.optimizer_class,), {"step": still})})


class EveryRankDoesAll(Reference):
    """No axis is entered: every rank computes every row, layer, head and expert by itself, and all agree."""

    def train(self, session: Session) -> Trained:
        alone = replace(
            session.execution, world=1, degrees=Degrees(), fsdp=False, replicas=1, schedule="1f1b", compile="none"
        )
        return super().train(replace(session, execution=alone))
