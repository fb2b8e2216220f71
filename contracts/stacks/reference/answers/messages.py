"""What the reference answers about the messages of a run."""

from __future__ import annotations

from contracts.spec.messages import Messages
from contracts.spec.training import Session, Trained


class MessageAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"messages"})

    def train(self, session: Session) -> Trained:
        raise NotImplementedError  # TrainingAnswers'

    def messages(self, session: Session) -> Messages:
        from contracts.stacks.kit import worlds

        return worlds.messages(self.train, session)
