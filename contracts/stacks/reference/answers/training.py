"""What the reference answers about training: a run of steps as a value, and which step consumes which sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from contracts.instruments import numerics
from contracts.spec import Blend, Built, Mode, Recipe, Refusals, Session, Split, Step, Tokens, Trained, refuse
from contracts.stacks.reference.answers.base import BuiltOfParts

if TYPE_CHECKING:  # torch is loaded when a run is asked for, not when the stack is introduced
    from contracts.stacks.reference.training.trainer import Batch, StepResult, Trainer


class TrainingAnswers(BuiltOfParts):
    """The answers of `Reference` on this subject."""

    def train(self, session: Session) -> Trained:
        _refuse_uncounted(session)
        if session.rates or session.frozen:
            _refuse_unknown(session, self.built(session.recipe, session.execution.mode))
        from contracts.stacks.kit.exact_kernels import exact_kernels

        with exact_kernels(session.execution.device):
            trainer = self.trainer_of(session.execution)(session.recipe, session.execution, self.parts())
            try:
                trained = _trained(trainer, session)
            except BaseException:
                trainer.abandon()
                raise
            trainer.close()
        return trained

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        raise NotImplementedError  # ModelAnswers'

    def samples(self, recipe: Recipe, step: int, rank: int, dp: int) -> tuple[int, ...]:
        from contracts.stacks.reference.data import Corpus, DataOrder

        total = recipe.batch.total
        if step < 1:
            raise refuse("step", step, "must be at least 1", "count optimizer steps from 1")
        return DataOrder(len(Corpus(recipe)), recipe.seed).of_rank((step - 1) * total, total, rank, dp)

    def sample(self, recipe: Recipe, id: int) -> Tokens:
        from contracts.stacks.reference.data import Corpus

        tokens_BT, labels_BT, documents_BT = Corpus(recipe).sequence(id)
        return Tokens(
            tokens=numerics.array(tokens_BT),
            labels=numerics.array(labels_BT),
            documents=numerics.array(documents_BT),
        )

    def rows_of(
        self, blend: Blend, split: Split, batch: int, rank: int, dp: int, consumed: int
    ) -> tuple[tuple[int, ...], ...]:
        from contracts.stacks.reference import blends

        return blends.rows_of(blend, split, batch, rank, dp, consumed)


def _refuse_uncounted(session: Session) -> None:
    """Refuse batches or microbatches that are not as many as are asked for."""
    found, parts = Refusals(), session.execution.microbatches
    for name, given in (("batches", session.batches), ("windows", session.windows)):
        found.unless(len(given) in (0, session.steps), name, len(given), f"must be one a step ({session.steps})",
                     "give as many")  # fmt: skip
    problem = f"must each have as many as the execution ({parts})"
    found.unless(all(len(window) == parts for window in session.windows), "windows", [*map(len, session.windows)],
                 problem, "set microbatches")  # fmt: skip
    found.raise_any()


def _refuse_unknown(session: Session, whole: Built) -> None:
    """Refuse rates of what is no parameter and no selection bias, and freezing what is none or all that is trained."""
    trained = {row.name for row in whole.parameters if row.optimizer is not None}
    known, found = {row.name for row in whole.parameters}, Refusals()
    for name in sorted({*session.rates} - known - {*whole.buffers}):
        found.add("rates", name, "is no weight and no selection bias", "use the names that built() gives")
    for name in sorted(session.frozen - known):
        found.add("frozen", name, "is no weight", "use the names that built() gives")
    left = bool(trained - session.frozen)
    found.unless(left, "frozen", len(session.frozen), "leaves nothing to train", "freeze fewer")
    found.raise_any()


def _trained(trainer: Trainer, session: Session) -> Trained:
    """A session, from what it loads to its last step."""
    if session.rates or session.frozen:
        trainer.choose(session.rates, session.frozen)
    if session.load is not None:
        trainer.resume(session.load)
    if session.weights:
        trainer.put(numerics.tensors(session.weights), dict(trainer.model.named_parameters()), "weights")
    if session.buffers:
        trainer.put(numerics.tensors(session.buffers), dict(trainer.model.named_buffers()), "buffers")
    start = trainer.number
    # Too few sequences for the ranks are refused before the first step.
    others = [trainer.share(_batch(each)) for each in session.validation]
    loaded = _loaded(trainer, session) if session.load is not None and 0 in session.at else None
    steps = tuple(_step(trainer, session, index, others) for index in range(session.steps))
    return Trained(start=start, steps=steps, loaded=loaded)


def _step(trainer: Trainer, session: Session, index: int, others: Sequence[Batch]) -> Step:
    """One step of a session, and what is to be seen of it."""
    number = trainer.number + 1
    seen = session.observe if not session.at or number in session.at else frozenset()
    wanted = "gradients" in seen
    if session.windows:
        done = trainer.step_over([trainer.share(_batch(micro)) for micro in session.windows[index]], wanted)
    elif session.batches:
        done = trainer.step(trainer.share(_batch(session.batches[index])), wanted)
    else:
        done = trainer.next(wanted)
    validated = None
    if others and number in session.validate_at:
        validated = trainer.validate(others)
    if session.save is not None and number in session.save_at:
        trainer.save(session.save)
        if session.keep is not None:
            trainer.retire(session.save, session.keep, session.durable)
    return replace(_answer(trainer, done, seen), validation=validated)


def _loaded(trainer: Trainer, session: Session) -> Step:
    """What stands in a trainer before its first step."""
    from contracts.stacks.reference.training.trainer import StepResult

    none = StepResult(number=trainer.number, losses={}, tokens=0, lr=0.0, grad_norm=0.0, clip_coef=1.0)
    return _answer(trainer, none, session.observe)


def _answer(trainer: Trainer, done: StepResult, seen: frozenset[str]) -> Step:
    from contracts.stacks.reference.checkpoint.rng_state import capture

    held: dict[str, Any] = {
        "weights": numerics.arrays(trainer.whole(dict(trainer.model.named_parameters()))) if "weights" in seen else {},
        "buffers": numerics.arrays(trainer.whole(dict(trainer.model.named_buffers()))) if "buffers" in seen else {},
        "optimizer": numerics.arrays(trainer.whole(trainer.optimizer.state())) if "optimizer" in seen else {},
        "rng": numerics.arrays(capture(trainer.execution.device)) if "rng" in seen else {},
    }
    return Step(
        number=done.number,
        losses=done.losses,
        tokens=done.tokens,
        lr=done.lr,
        grad_norm=done.grad_norm,
        largest=trainer.largest(*done.own) if done.own is not None and "largest" in seen else None,
        clip_coef=done.clip_coef,
        samples=done.samples,
        gradients=numerics.arrays(done.gradients),
        seen=numerics.arrays(done.seen),
        **held,
    )


def _batch(tokens: Tokens) -> Batch:
    from contracts.stacks.reference.training.trainer import Batch

    documents = None if tokens.documents is None else numerics.tensor(tokens.documents)
    return Batch(numerics.tensor(tokens.tokens), numerics.tensor(tokens.labels), documents)
