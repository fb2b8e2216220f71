"""The run on one rank, which every layout of the same model is held against."""

from __future__ import annotations

from contracts.spec.training import Session, Trained, Training


def on_one_rank(stack: Training, session: Session) -> Trained:
    """A run that each rank takes by itself. Nothing may be saved or loaded in it, or drawn from generators.

    A party on the stand is asked for it once, and is held to what it said when the next layout comes. Any other stack
    is asked each time.
    """
    recall = getattr(stack, "recall", None)
    trained: Trained = stack.train(session) if recall is None else recall("train", session)
    return trained
