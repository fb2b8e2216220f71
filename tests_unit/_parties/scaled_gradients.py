"""Real stacks with one more fault in a case whose violation is declared: some gradients are off by a factor.

Only with several ranks, as a collective that is called twice, or divided by too much, would leave them.
"""

from dataclasses import replace

from contracts.instruments import numerics
from contracts.spec import Arrays, Session, Trained
from contracts.stacks.megatron.stack import Megatron
from contracts.stacks.torchtitan.stack import Torchtitan


def scaled(trained: Trained, part: str, factor: float) -> Trained:
    """A run with the gradients whose names contain `part` times a factor."""

    def times(gradients: Arrays) -> Arrays:
        hit = {name: numerics.tensor(each) * factor for name, each in gradients.items() if part in name}
        assert hit or not gradients, f"no gradient is called {part}"
        return {**gradients, **numerics.arrays(hit)}

    return replace(trained, steps=tuple(replace(step, gradients=times(step.gradients)) for step in trained.steps))


class SharedExpertsTwice(Megatron):
    """Megatron-Core with the gradients of its shared experts doubled under tensor parallel."""

    def train(self, session: Session) -> Trained:
        trained: Trained = self._numbers.train(session)
        return scaled(trained, ".shared.", 2.0) if session.execution.degrees.tp > 1 else trained


class RoutersHalved(Torchtitan):
    """torchtitan with the gradients of its routers halved under a pipeline."""

    def train(self, session: Session) -> Trained:
        trained: Trained = self.__getattr__("train")(session)  # what it answers stands in modules, and not in a class
        return scaled(trained, ".router.weight", 0.5) if session.execution.degrees.pp > 1 else trained
