"""The record of a run of the gate: the plan, the results, the claims, and the verdict that follows from them.

A run is written as JSON lines: a header, the plan (before anything runs), one line for each result, a footer. Every
report (terminal, JUnit, Markdown, HTML, exit code) is a function of the verdict, and the verdict is a function of the
run. So a run can be judged again later, elsewhere, without the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "rankproof.run/1"

Outcome = Literal["holds", "violated", "deviates", "not offered", "untested", "not run", "broken"]
"""holds: the stack kept the contract. violated: it did not. deviates: it did not, and its owner declared so. not
offered: the stack does not have what the contract is about. untested: the contract has no check yet. not run: it was
planned and could not be tried. broken: the suite or the adapter failed, which says nothing about the contract."""
OUTCOMES: tuple[Outcome, ...] = ("holds", "violated", "deviates", "not offered", "untested", "not run", "broken")

Form = Literal["terminal", "markdown", "junit", "html", "json", "annotations", "sarif"]
FORMS: tuple[Form, ...] = ("terminal", "markdown", "junit", "html", "json", "annotations", "sarif")

Word = Literal["conformant", "violated", "incomplete", "broken", "nothing ran"]
EXIT_CODES: Mapping[Word, int] = {"conformant": 0, "violated": 1, "incomplete": 3, "broken": 4, "nothing ran": 5}
"""Scripts often forgive pytest's 5 (`pytest … || [ $? -eq 5 ]`), so here 5 means only that there was nothing to judge.
A run that had something to judge and did not is incomplete."""
USAGE_ERROR = 2


@dataclass(frozen=True, kw_only=True, order=True)
class Item:
    """One planned judgement: a contract in one case. A contract without a check is planned with an empty case."""

    id: str
    case: str = ""

    def __str__(self) -> str:
        return f"{self.id}[{self.case}]" if self.case else self.id


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one planned item.

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
    """A deviation that the owner of a stack declares, with the reason and the day on which it expires.

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
    """The stack under test (or an assistant) as it introduced itself, and from where it was loaded."""

    name: str
    version: str
    origin: str
    offers: frozenset[str]
    layouts: frozenset[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    """Question → `file:line` of the code that answers it, where that is Python; relative to the working directory."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """Which suite judged which stack, when, and with which profile. Times are UTC, ISO 8601."""

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
    """The self-test that this run was given: which suite it is of, and where it was made."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A contract's statement when the run was planned; `promise` is the statement."""

    promise: str
    source: str
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every item that must have a result, fixed before anything runs. `outside` names what the profile leaves out:
    contracts by id, and single cases (`ID[case]`) of contracts that are planned in part."""

    items: tuple[Item, ...]
    outside: tuple[str, ...] = ()
    promises: Mapping[str, Statement] = field(default_factory=dict)
    """The statement of each planned id, so that a recorded run can be read without the suite that wrote it."""


@dataclass(frozen=True, kw_only=True)
class Footer:
    """The last line of a run; a run without it is refused as cut off. `digest` is the SHA-256 of the lines above."""

    digest: str
    results: int
    word: Word
    exit_code: int
    finished: str


@dataclass(frozen=True, kw_only=True)
class Unclaimed:
    """A question that the stack answers without naming it in `offers`, with the evidence."""

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
    """Something wrong with the run itself: a stale deviation, an unplanned result, an offered question that was never
    answered, a suite that does not catch its own mutants."""

    kind: Literal["deviation", "plan", "claim", "suite"]
    words: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a run. Every report and the exit code are computed from it."""

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
    """The fate of one mutant: killed with its declared words, survived, or proved nothing.

    `loss` and `norm` say whether the loss or the gradient norm alone would have shown the bug, where the check trained
    the mutant: "agrees" (it would not), or the two numbers.
    """

    mutant: str
    of: str
    case: str
    fate: Fate
    words: str
    bugs: tuple[str, ...] = ()
    loss: str = ""
    norm: str = ""
