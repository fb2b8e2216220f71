"""A party on the stand: puts the questions of one check to whoever answers them, and keeps the answers honest.

Whatever a party does wrong is told apart here, once: an answer of the wrong type, an exception that is neither a
refusal nor a decline, an AssertionError of its own, a `sys.exit` or a `pytest.skip` are *broken*. None of them may read
as a violation, because an error proves nothing about the promise; none may read as a pass, or end the gate.

Some parties answer each question in a fresh copy of one process, so that no answer can depend on an earlier one, and
name such questions in `repeats`. What one of them answered in one case it is not asked again in the next. Within a
case it is: a check that asks twice holds two answers against each other. Of other parties a check may `recall` what
they said: the run on one rank, which one layout after the other is held against.
"""

from __future__ import annotations

import hashlib
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
RECALLED = 256  # answers of a party; a run that tells weights and state is 2 MB, and most tell less
Answers = weakref.WeakKeyDictionary[Party, OrderedDict[str, Any]]
"""Party → question with its arguments → answer. A mutant is another party than what it was made of."""
_ANSWERS, _RECALLED = Answers(), Answers()
Answering = Callable[[Party, Question, tuple[Any, ...], dict[str, Any]], Any]


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
        party = self._party(name)
        return lambda *arguments, **named: self._asked(self._answer, party, known[name], arguments, named)

    def recall(self, name: str, *arguments: Any) -> Any:
        """What the party answered in an earlier case; what it answers now, if it was not asked or that is long ago.

        For what a check holds other answers against, and never for what it judges. Each rank recalls by itself, so
        nothing may be recalled that several ranks answer together.
        """
        return self._asked(self._recalled, self._party(name), questions()[name], arguments, {})

    def _party(self, name: str) -> Party:
        if name not in self._asks:
            raise Broken(f"the check puts {name!r}, which its contract does not ask")
        return self._parties[name]

    def _asked(
        self, answer: Answering, party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        self.answered[question.name] = f"{party.name} {party.version} ({party.labels.get(question.name, 'unpatched')})"
        try:
            return answer(party, question, arguments, named)
        except (Refused, NotOffered) as declined:
            self.declined = declined
            raise

    def _answer(self, party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Put a question, unless the party has answered it in an earlier case and says that it would repeat itself."""
        if question.name not in getattr(party, "repeats", ()):
            return _put(party, question, arguments, named)
        answers = _ANSWERS.setdefault(party, OrderedDict())
        asked = codec.dumps([question.name, arguments, named])
        if asked in self._put or asked not in answers:
            answers[asked] = _put(party, question, arguments, named)
        self._put.add(asked)
        return _latest(answers, asked, KEPT)

    def _recalled(self, party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        answers = _RECALLED.setdefault(party, OrderedDict())
        asked = hashlib.sha256(codec.dumps([question.name, arguments, named]).encode()).hexdigest()
        if asked not in answers:
            answers[asked] = _put(party, question, arguments, named)
        return _latest(answers, asked, RECALLED)


def _latest(answers: OrderedDict[str, Any], asked: str, kept: int) -> Any:
    """An answer, which becomes the last to be forgotten of as many as are kept."""
    answers.move_to_end(asked)
    while len(answers) > kept:
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
