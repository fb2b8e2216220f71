"""The messages between pipeline stages, watched while a stack trains in this process."""

from collections.abc import Callable

from contracts.instruments.ranks import held_groups
from contracts.spec import Messages, Session, Trained


def watched(train: Callable[[Session], Trained], session: Session) -> Messages:
    """What this rank sends and receives while it trains, and which process groups it holds then."""
    from contracts.instruments import point_to_point

    before = held_groups()
    with point_to_point.watched() as seen:
        train(session)
    return Messages(issued=tuple(seen.issued), warnings=tuple(seen.warnings), before=before, held=seen.held)
