"""What the reference answers about the messages of a run."""

from __future__ import annotations

from contracts.instruments.ranks import held_groups
from contracts.spec.messages import Messages
from contracts.spec.training import Session, Trained


class MessageAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"messages"})

    def train(self, session: Session) -> Trained:
        raise NotImplementedError  # TrainingAnswers'

    def messages(self, session: Session) -> Messages:
        from contracts.instruments import point_to_point

        before = held_groups()
        with point_to_point.watched() as seen:
            self.train(session)
        return Messages(issued=tuple(seen.issued), warnings=tuple(seen.warnings), before=before, held=seen.held)
