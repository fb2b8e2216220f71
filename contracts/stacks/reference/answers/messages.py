"""What the reference answers about the messages of a run."""

from contracts.spec import Session, Trained
from contracts.spec.messages import Messages
from contracts.stacks.kit.messages import watched


class MessageAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"messages"})

    def train(self, session: Session) -> Trained:
        raise NotImplementedError  # TrainingAnswers'

    def messages(self, session: Session) -> Messages:
        return watched(self.train, session)
