"""A party on the stand: passes the questions of one check to the party that answers them, and checks every answer.

A party answers questions: the stack under test, or an assistant. Its mistakes are *broken*: an answer of the wrong
type, an exception that is neither a refusal nor a decline, an AssertionError of its own, a `sys.exit`, a `pytest.skip`.
None of them may look like a violation, because an error proves nothing about the contract; none may look like a pass,
or end the gate.

Some parties answer each question in a fresh copy of one process, so that no answer depends on an earlier one. They name
such questions in `repeats`, and their answers are kept from case to case. Within one case the party is asked again: a
check that asks twice compares the two answers. For other parties a check may `recall` an earlier answer, such as the
run on one rank with which every layout is compared.
"""

import hashlib
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from contracts.court.deadline import Overdue
from contracts.court.floor import Floor
from contracts.court.narrowing import narrowed, placed
from contracts.spec import (
    Array,
    BlockRun,
    NotOffered,
    Party,
    Question,
    Refused,
    Unreachable,
    abilities_of,
    codec,
    conventions_of,
    questions,
    shown,
)
from contracts.spec.codec import conforms

KEPT = 1024  # answers of a party; a mesh of 65 536 ranks is 100 MB of them, and three are asked for
RECALLED = 256  # answers of a party; a run that tells weights and state is 2 MB, and most tell less
Answers = weakref.WeakKeyDictionary[Party, OrderedDict[str, Any]]
"""Party → question with its arguments → answer. A mutant is a party of its own, apart from the one it derives from."""
_ANSWERS, _RECALLED = Answers(), Answers()
Answering = Callable[[Party, Question, tuple[Any, ...], dict[str, Any]], Any]


class Broken(Exception):
    """The adapter, or the suite, failed. Carries the words for the report."""


class OnTheStand:
    """What a check sees as `stack`: every question goes to the party that answers it.

    The subject answers what it offers. A question that it does not offer goes to the first assistant that does, and the
    report says so. A question about numbers goes only to the subject, because tensors of two stacks cannot be
    compared. `answered` maps each question that was asked to the party that answered it, and how. `conventions` has the
    choices of the party that answers the first question, for the conventions that the check follows. With `float32`,
    a subject whose abilities have no float64, or none beside what the case `needed`, is asked in float32 instead.
    `device` takes the place of the CPU in what the subject is asked; `placed` has the questions in which it did.
    """

    def __init__(
        self,
        subject: Party,
        assistants: Iterable[Party],
        asks: tuple[str, ...],
        follows: tuple[str, ...] = (),
        float32: bool = False,
        needed: frozenset[str] = frozenset(),
        device: str = "cpu",
    ) -> None:
        self.name, self.subject, self.float32 = subject.name, subject, float32
        self.device, self.placed = device, set[str]()
        self.layouts = subject.layouts
        self.abilities = abilities_of(subject)
        self.answered: dict[str, str] = {}
        self.declined: Refused | NotOffered | None = None  # the latest from a party, not from the check itself
        self.latest = ""  # the question that was asked last
        self.floor = Floor()
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
        declared = conventions_of(self._parties.get(asks[0], subject))
        self.conventions = {name: declared[name] for name in follows}
        able = self.abilities
        wide = needed | {"float64"} if able is not None and able.absence(needed, asks) is None else {"float64"}
        self.narrow = able is not None and able.absence(wide, asks) is not None
        self.asked_in_float32 = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        known = questions()
        if name not in known:
            raise AttributeError(name)
        party = self._party(name)
        return lambda *arguments, **named: self._asked(self._answer, party, known[name], arguments, named)

    def recall(self, name: str, *arguments: Any) -> Any:
        """The party's answer of an earlier case; its answer now, if it was not asked or if that answer is kept no
        longer.

        A check recalls what it compares with, never what it judges. Each rank recalls by itself, so an answer that
        several ranks give together must not be recalled.
        """
        return self._asked(self._recalled, self._party(name), questions()[name], arguments, {})

    def _party(self, name: str) -> Party:
        if name not in self._asks:
            raise Broken(f"the check asks {name!r}, which its contract does not list")
        return self._parties[name]

    def _asked(
        self, answer: Answering, party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        self.latest = question.name
        if self.float32 and self.narrow and party is self.subject:
            given = (arguments, named)
            arguments, named = narrowed(given)
            self.asked_in_float32 |= arguments is not given[0] or named is not given[1]
        if self.device != "cpu" and party is self.subject:
            arguments, named = placed(given := (arguments, named), self.device)
            if arguments is not given[0] or named is not given[1]:
                self.placed.add(question.name)
        try:
            self.answered[question.name] = (
                f"{party.name} {party.version} ({party.labels.get(question.name, 'unpatched')})"
            )
            given = answer(party, question, arguments, named)
            self.floor.note((*arguments, *named.values()), given)
            return given
        except (Refused, NotOffered) as declined:
            self.declined = declined
            raise

    def _answer(self, party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Ask a question, unless the party answered it in an earlier case and says that it would repeat itself."""
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
    """An answer; it becomes the newest of those that are kept."""
    answers.move_to_end(asked)
    while len(answers) > kept:
        answers.popitem(last=False)
    return answers[asked]


def _put(party: Party, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        answer = question.ask(party, arguments, named)
    except (Refused, NotOffered):
        raise
    except Unreachable as error:
        raise Broken(f"{party.name} could not be asked for {question.name}: {words_of(error)}") from error
    except (Overdue, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit and pytest's own outcomes are no Exception
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        raise Broken(
            f"{party.name} raised {type(error).__name__} on {question.name} at {where}: {words_of(error)}"
        ) from error
    if not conforms(question.answer, answer):
        kind = getattr(question.answer, "__name__", str(question.answer))
        raise Broken(f"{party.name} answered {question.name} with {_seen(answer)}, which is not a {kind}")
    return replace(answer, seen=_Seen(answer.seen)) if isinstance(answer, BlockRun) else answer


class _Seen(dict[str, Array]):
    """What a block reports of its routing; a check that reads more than that has not been answered."""

    def __missing__(self, name: str) -> Array:
        raise NotOffered(f"its blocks report {', '.join(sorted(self)) or 'nothing'} in `seen`, and not {name!r}")


def words_of(error: BaseException) -> str:
    """What an exception says. Its own `__str__` may raise anything, and an AssertionError of it is no violation."""
    try:
        return str(error)
    except (Overdue, KeyboardInterrupt):
        raise
    except BaseException as worse:
        return f"(its words raise {type(worse).__name__})"


def _seen(answer: object) -> str:
    """An answer of another type, and which type, as its `__repr__` lets it be seen."""
    name = type(answer).__name__
    try:
        seen = shown(answer)
    except (Overdue, KeyboardInterrupt):
        raise
    except BaseException as worse:
        return f"a {name} (its repr raises {type(worse).__name__})"
    return seen if type(answer).__module__ == "builtins" else f"{seen} ({name})"
