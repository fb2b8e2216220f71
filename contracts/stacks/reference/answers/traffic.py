"""What the reference answers about what ranks send: the messages of a run, and a step at its true size."""

from dataclasses import replace

from contracts.spec import Execution, Messages, NotOffered, Recipe, Rehearsal, Routing, Session, Trained
from contracts.stacks.kit import dry_runs
from contracts.stacks.kit.messages import watched
from contracts.stacks.reference.answers.base import BuiltOfParts


class MessageAnswers:
    """The answers of `Reference` on this subject."""

    def train(self, session: Session) -> Trained:
        raise NotImplementedError  # TrainingAnswers'

    def messages(self, session: Session) -> Messages:
        return watched(self.train, session)


class DryRunAnswers(BuiltOfParts):
    """The answer of `Reference` on this subject."""

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        import torch.distributed as dist

        dry_runs.refuse_rank(execution, rank)
        if execution.compile != "none":
            raise NotOffered("what a compiled graph issues is not seen; rehearse the execution uncompiled", "stack")
        if dist.is_initialized():
            own = (type(self).__module__, type(self).__qualname__, dict[str, str]())
            return dry_runs.elsewhere(own, recipe, execution, rank, routing, "rehearsed_here")
        return self.rehearsed_here(recipe, execution, rank, routing)

    def rehearsed_here(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        from contracts.stacks.reference.parallel import dry_run

        execution = replace(execution, device="cpu")  # its tensors have no elements
        kind, parts = self.trainer_of(execution), self.parts()
        return dry_run.dry_run_step(recipe, execution, rank, routing, kind, parts)  # type: ignore[arg-type]  # a class is
