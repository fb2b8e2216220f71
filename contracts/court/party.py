"""A party on the stand: puts the questions of one check to whoever answers them, and keeps the answers honest.

Whatever a party does wrong is told apart here, once: an answer of the wrong type, an exception that is neither a
refusal nor a decline, an AssertionError of its own, a `sys.exit` or a `pytest.skip` are *broken*. None of them may read
as a violation, because an error proves nothing about the promise; none may read as a pass, or end the gate.

Some parties answer each question in a fresh copy of one process, so that no answer can depend on an earlier one, and
name such questions in `repeats`. What one of them answered in one case it is not asked again in the next. Within a
case it is: a check that asks twice holds two answers against each other.
"""

from __future__ import annotations

import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from contracts.court.deadline import Overdue
from contracts.spec import codec
from contracts.spec.codec import conforms
from contracts.spec.errors import NotOffered, Refused, Unreachable, shown
from contracts.spec.stack import Party, Question, questions

KEPT = 1024  # answers of a party; a mesh of 65 536 ranks is 100 MB of them, and three are asked for
_ANSWERS: weakref.WeakKeyDictionary[Party, OrderedDict[str, Any]] = weakref.WeakKeyDictionary()
"""Party → question with its arguments → answer. A mutant is another party than what it was made of."""


class Broken(Exception):
    """The adapter, or the suite, failed. Carries the words for the report."""


class OnTheStand:
    """What a check sees as `stack`: every question it asks goes to the party that answers it.

    The subject answers what it offers. A question it does not offer goes to the first assistant that does, and the
    report says so; one about numbers goes to nobody else: tensors of two stacks have nothing to agree on. `answered`
    maps each question that was really put to the one who answered and how.
    """

    def __init__(self, subject: Party, assistants: Iterable[Party], asks: tuple[str, ...]) -> None:
        self.name = subject.name
        self.layouts = subject.layouts
        self.answered: dict[str, str] = {}
        self.declined: Refused | NotOffered | None = None  # the last one that came from a party, not from the check
        self._asks = asks
        self._put: set[str] = set()
        assistants = tuple(assistants)
        self._parties: dict[str, Party] = {}
        for asked in asks:
            others = () if questions()[asked].of_numbers else assistants
            for party in (subject, *others):
                if asked in party.offers:
                    self._parties[asked] = party
                    break
        self.missing = tuple(asked for asked in asks if asked not in self._parties)
        self.own = tuple(asked for asked in asks if self._parties.get(asked) is subject)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        known = questions()
        if name not in known:
            raise AttributeError(name)
        if name not in self._asks:
            raise Broken(f"the check puts {name!r}, which its contract does not ask")
        party = self._parties[name]

        def put(*arguments: Any, **named: Any) -> Any:
            self.answered[name] = f"{party.name} {party.version} ({party.labels.get(name, 'unpatched')})"
            try:
                return self._answer(party, known[name], arguments, named)
            except (Refused, NotOffered) as declined:
                self.declined = declined
                raise

        return put

    def _answer(self, party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Put a question, unless the party has answered it in an earlier case and says that it would repeat itself."""
        if question.name not in getattr(party, "repeats", ()):
            return _put(party, question, arguments, named)
        answers = _ANSWERS.setdefault(party, OrderedDict())
        asked = codec.dumps([question.name, arguments, named])
        if asked in self._put or asked not in answers:
            answers[asked] = _put(party, question, arguments, named)
        answers.move_to_end(asked)
        self._put.add(asked)
        while len(answers) > KEPT:
            answers.popitem(last=False)
        return answers[asked]


def _put(party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        answer = getattr(party, question.name)(*arguments, **named)
    except (Refused, NotOffered):
        raise
    except Unreachable as error:
        raise Broken(f"{party.name} could not be asked for {question.name}: {error}") from error
    except (Overdue, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit and pytest's own outcomes are no Exception
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        raise Broken(f"{party.name} raised {type(error).__name__} on {question.name} at {where}: {error}") from error
    if not conforms(question.answer, answer):
        kind = getattr(question.answer, "__name__", str(question.answer))
        raise Broken(f"{party.name} answered {question.name} with {shown(answer)}, which is not a {kind}")
    return answer
