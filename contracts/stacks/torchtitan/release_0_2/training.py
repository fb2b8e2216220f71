"""Sessions on the trainer of torchtitan 0.2.2."""

from typing import Any

from contracts.spec import Arrays, Built, Execution, Mode, Pass, Recipe, Rehearsal, Routing, Session, Tokens, Trained
from contracts.stacks.torchtitan import built_model, training
from contracts.stacks.torchtitan.release_0_2.abilities import ABILITIES_0_2

WHO = "torchtitan 0.2.2"


class Run(training.Run):
    """One trainer of 0.2.2, from its construction to its end."""

    who = WHO
    abilities = ABILITIES_0_2
    own_rates = False

    def build_trainer(self) -> Any:
        from contracts.stacks.torchtitan.release_0_2.trainer import build_trainer

        return build_trainer(self.session, self.folder.name, even=self.even)

    def size(self) -> int:
        found: int = self.trainer.job_config.training.local_batch_size
        return found


def built(recipe: Recipe, mode: Mode) -> Built:
    """Parameters under their canonical names."""
    return built_model.built(recipe, mode, WHO, ABILITIES_0_2)


def initial(recipe: Recipe, mode: Mode) -> Arrays:
    """The weights that its trainer draws."""
    return training.initial(recipe, mode, Run)


def run_model(recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
    """One pass, as its trainer makes it: forward, loss and backward."""
    return training.run_model(recipe, execution, weights, batch, backward, Run)


def train(session: Session) -> Trained:
    """A session, on one rank of its world or in this process only."""
    return training.train(session, Run)


def rehearse(recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
    """A dry run of one rank's step, in a process without a world."""
    return training.rehearse(recipe, execution, rank, routing, Run)
