"""The run on one rank, which every layout of the same model is compared with."""

from __future__ import annotations

from contracts.spec.training import Session, Trained, Training


def on_one_rank(stack: Training, session: Session) -> Trained:
    """A run that each rank does alone. It must not save, load, or draw from random generators.

    A stack with `recall`, as the gate wraps it, runs it once, and later layouts reuse the answer. Any other stack runs
    it each time.
    """
    recall = getattr(stack, "recall", None)
    trained: Trained = stack.train(session) if recall is None else recall("train", session)
    return trained
