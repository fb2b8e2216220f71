"""What a run of the gate leaves behind: the plan, the results, the claims, and the verdict drawn from them.

A run is written as JSON lines: a header, the plan (before anything runs), one line a result, a footer. Everything a
reader may want (terminal, JUnit, Markdown, HTML, exit code) is a function of the verdict, and the verdict a function
of the run, so a run can be judged again later, elsewhere, without the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "rankproof.run/1"

Outcome = Literal["holds", "violated", "deviates", "not offered", "untested", "not run", "broken"]
"""holds: the promise was kept. violated: it was not. deviates: it was not, and the stack's owner declared it.
not offered: the stack has no such thing. untested: the law has no check for it yet. not run: it was planned and
could not be tried. broken: the suite, or the adapter, failed; that says nothing about the promise."""
OUTCOMES: tuple[Outcome, ...] = ("holds", "violated", "deviates", "not offered", "untested", "not run", "broken")

Form = Literal["terminal", "markdown", "junit", "html", "json"]
FORMS: tuple[Form, ...] = ("terminal", "markdown", "junit", "html", "json")

Word = Literal["conformant", "violated", "incomplete", "broken", "nothing ran"]
EXIT_CODES: Mapping[Word, int] = {"conformant": 0, "violated": 1, "incomplete": 3, "broken": 4, "nothing ran": 5}
"""Scripts are used to forgive pytest's 5 (`pytest … || [ $? -eq 5 ]`); here it is kept for a run that had nothing to
judge. A run that had and did not is incomplete."""
USAGE_ERROR = 2


@dataclass(frozen=True, kw_only=True, order=True)
class Item:
    """One planned judgement: a contract in one case. A promise without a check is planned with an empty case."""

    id: str
    case: str = ""

    def __str__(self) -> str:
        return f"{self.id}[{self.case}]" if self.case else self.id


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one planned item.

    `answered` maps each question to the party that answered it and how: `{"read_argv": "megatron 0.19.2
    (unpatched)"}`. `rank` is the rank that diverged first, where there are several.
    """

    id: str
    case: str = ""
    outcome: Outcome
    words: str = ""
    seconds: float = 0.0
    answered: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None

    @property
    def item(self) -> Item:
        return Item(id=self.id, case=self.case)


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A declared deviation of a stack: the owner knows, says why, and names the day it ends.

    `case` is a shell-style selector over case names; `expires` an ISO date.
    """

    id: str
    case: str
    reason: str
    issue: str
    owner: str
    expires: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The party under test as it introduced itself, and from where it was loaded."""

    name: str
    version: str
    origin: str
    offers: frozenset[str]
    layouts: frozenset[str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was asked of whom, when, by which suite. Times are UTC, ISO 8601."""

    schema: str
    suite: str
    revision: str
    profile: str
    subject: Subject
    assistants: tuple[Subject, ...]
    started: str
    command: tuple[str, ...]
    python: str
    platform: str
    proof: str = ""
    """The self-test of the suite that this run was given: what it is of, and where it was made."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A promise as it stood when the run was planned."""

    promise: str
    source: str
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every item that must have a result, fixed before anything runs; and what lies outside the profile: promises by
    id, and single cases (`ID[case]`) of promises that are planned in part."""

    items: tuple[Item, ...]
    outside: tuple[str, ...] = ()
    promises: Mapping[str, Statement] = field(default_factory=dict)
    """What each planned id says, so that a recorded run can be read without the suite that wrote it."""


@dataclass(frozen=True, kw_only=True)
class Footer:
    """Closes a run. A run without it was cut off and is refused. `digest` is the SHA-256 of every line above it."""

    digest: str
    results: int
    word: Word
    exit_code: int
    finished: str


@dataclass(frozen=True, kw_only=True)
class Unclaimed:
    """A question that the subject answers without claiming it, with the evidence."""

    question: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """A contract that failed the suite's own test, with the reason. Its items are not run."""

    id: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run, read back."""

    header: Header
    plan: Plan
    results: tuple[Result, ...]
    deviations: tuple[Deviation, ...] = ()
    unclaimed: tuple[Unclaimed, ...] = ()
    kills: tuple[Kill, ...] = ()
    unfit: tuple[Unfit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something wrong with the run itself: a stale deviation, a result that nobody planned, a claim never answered, a
    suite that does not catch its own mutants."""

    kind: Literal["deviation", "plan", "claim", "suite"]
    words: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The one judgement from which every report and the exit code are drawn."""

    word: Word
    profile: str
    subject: str
    results: tuple[Result, ...]
    faults: tuple[Fault, ...]
    counts: Mapping[str, int]
    unfit: tuple[str, ...] = ()
    """Planned contracts that failed the suite's own test."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.word]


Fate = Literal["killed", "survived", "wrong words", "crashed", "void"]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What became of one mutant: killed for its words, or survived, or proved nothing.

    `loss` and `norm` are what these two alone would have told of it, where the check trained it: "agrees", or the two
    numbers.
    """

    mutant: str
    of: str
    case: str
    fate: Fate
    words: str
    bugs: tuple[str, ...] = ()
    loss: str = ""
    norm: str = ""
