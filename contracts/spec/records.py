"""The record of a run of the gate: the plan, the results, the claims, and the verdict that follows from them.

A run is written as JSON lines: a header, the plan (before anything runs), one line for each result, a footer. Every
report (terminal, JUnit, Markdown, HTML, exit code) is a function of the verdict, and the verdict is a function of the
run. So a run can be judged again later, elsewhere, without the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from contracts.spec.abilities import Abilities
from contracts.spec.errors import Lack

SCHEMA = "rankproof.run/1"

Outcome = Literal["holds", "violated", "deviates", "not offered", "untested", "not run", "broken"]
"""holds: the stack kept the contract. violated: it did not. deviates: it did not, and its owner declared so. not
offered: the stack does not have what the contract is about. untested: the contract has no check yet. not run: it was
planned and could not be tried. broken: the suite or the adapter failed, which says nothing about the contract."""
OUTCOMES: tuple[Outcome, ...] = ("holds", "violated", "deviates", "not offered", "untested", "not run", "broken")

Form = Literal["terminal", "markdown", "junit", "html", "json", "annotations", "sarif", "comment", "check-run",
               "code-quality"]  # fmt: skip
FORMS: tuple[Form, ...] = get_args(Form)

Word = Literal["conformant", "violated", "incomplete", "broken", "nothing ran"]
EXIT_CODES: Mapping[Word, int] = {"conformant": 0, "violated": 1, "incomplete": 3, "broken": 4, "nothing ran": 5}
"""Scripts often forgive pytest's 5 (`pytest … || [ $? -eq 5 ]`), so here 5 means only that there was nothing to judge.
A run that had something to judge and did not is incomplete."""
USAGE_ERROR = 2


@dataclass(frozen=True, kw_only=True, order=True)
class Item:
    """One planned judgement: a contract in one case. A contract without a check is planned with an empty case.

    A case that is asked on a leaner recipe has the rung in its name: `tp2-sp@pairs`.
    """

    id: str
    case: str = ""

    def __str__(self) -> str:
        return f"{self.id}[{self.case}]" if self.case else self.id

    @property
    def rung(self) -> str:
        """The rung of the ladder on which the case is asked; empty for the recipe that it was written with."""
        return self.case.partition("@")[2]

    @property
    def above(self) -> Item:
        """The case itself, whichever rung it is asked on. A case counts once."""
        return replace(self, case=self.case.partition("@")[0])


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One thing that a check found wrong. `tensor` is the name of the tensor that differs, where tensors are compared
    by name."""

    words: str
    tensor: str = ""


@dataclass(frozen=True, kw_only=True)
class OnRanks:
    """What a case of several ranks found wrong on these ranks, which all found the same; nothing where they passed."""

    ranks: tuple[int, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one planned item.

    `answered` maps each question to the party that answered it and how: `{"read_argv": "megatron 0.19.2
    (unpatched)"}`. `rank` is the rank that diverged first, where there are several, and `ranks` are those on which it
    went wrong. `violations` has everything that is wrong where the item is violated; `words` may be shorter. `lack`
    says whose lack it is where an item is not offered. `dtype` is float32 where a case in float64 was put in float32,
    because the stack has no float64. `device` is cuda if this process allocated memory of CUDA devices while it judged
    the item. `on_ranks` is what each of several ranks found by itself, where one found
    anything; a rank that another ended is in none. The judgement is only by `violations`.
    """

    id: str
    case: str = ""
    outcome: Outcome
    words: str = ""
    seconds: float = 0.0
    answered: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    violations: tuple[Violation, ...] = ()
    lack: Lack | None = None
    dtype: str = ""
    device: Literal["", "cuda"] = ""
    on_ranks: tuple[OnRanks, ...] = ()

    @property
    def item(self) -> Item:
        return Item(id=self.id, case=self.case)

    @property
    def parts(self) -> tuple[Violation, ...]:
        """Everything that is wrong where the item is violated; a record of an older suite has only the words."""
        return self.violations or (Violation(words=self.words),)


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A deviation that the owner of a stack declares: what it forgives, the reason, and the day on which it expires.

    Args:
        case: a shell-style selector over case names.
        expires: an ISO date, the last day on which it counts.
        says: words of the violation; `#` stands for any number, `*` for any text. Empty forgives nothing.
        tensors: shell-style selectors over the names of the tensors that differ; empty where none are compared.
        device: "cpu" or "cuda" if it is only about that device.
        versions: shell-style selectors over versions of the stack, if it is only about these.
    """

    id: str
    case: str
    reason: str
    issue: str
    owner: str
    expires: str
    says: str = ""
    tensors: tuple[str, ...] = ()
    device: Literal["", "cpu", "cuda"] = ""
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The code that one process has under the name of a stack, and what runs it.

    Args:
        process: which one it is: the one that judges, a worker, a command.
        version: of the code that is imported, which need not be the installed distribution's.
        digest: the SHA-256 of its files.
        commit: of the checkout that it lies in, and `dirty` whether anything there is changed; empty outside one.
        torch: the version of torch beside it; empty without one.
        python: the interpreter, version and path.
    """

    process: str
    module: str
    path: str
    version: str
    digest: str
    commit: str = ""
    dirty: bool = False
    torch: str = ""
    python: str

    @property
    def code(self) -> tuple[str, ...]:
        """What must be the same in every process that answers under one name."""
        return (self.module, self.version, self.digest, self.torch, self.python.partition(" ")[0])


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The stack under test (or an assistant) as it introduced itself, and from where it was loaded."""

    name: str
    version: str
    origin: str
    offers: frozenset[str]
    layouts: frozenset[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    abilities: Abilities | None = None
    conventions: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    """Question → `file:line` of the code that answers it, where that is Python; relative to the repository's root."""
    answering: tuple[Answering, ...] = ()
    """What each process that answers has under the stack's name; empty where it is no Python that could be found."""


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
    device: Literal["", "cpu", "cuda"] = ""
    """The device on which the stack was asked to compute; empty in a record of an older suite."""
    ranks: int = 1
    backend: str = ""
    """What carried tensors between the ranks: gloo, nccl beside it, or staged, through host memory; empty for one."""
    interpreter: tuple[str, ...] = ()
    """Options and PYTHON… variables by which the judging interpreter was started."""
    changed: str = ""
    """Which change of the stack decided the order of the plan, and how many items it can touch."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A contract's statement when the run was planned; `promise` is the statement."""

    promise: str
    source: str
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An item that is not asked because the stack declares that it cannot build its recipe.

    `instead` are the items that are asked in its place. Without any, the item stands in the plan and is not offered.
    One that was asked for by its name stands for itself: it is asked all the same, and may be declined.
    `kind` says whose lack it is.
    """

    item: str
    instead: tuple[str, ...]
    kind: Lack
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every item that must have a result, fixed before anything runs. `outside` names what the profile leaves out:
    contracts by id, and single cases (`ID[case]`) of contracts that are planned in part. `choices` are the items that
    the stack's declared abilities rule out, and `claimed` those that they say it can build."""

    items: tuple[Item, ...]
    outside: tuple[str, ...] = ()
    promises: Mapping[str, Statement] = field(default_factory=dict)
    """The statement of each planned id, so that a recorded run can be read without the suite that wrote it."""
    choices: tuple[Choice, ...] = ()
    claimed: tuple[str, ...] = ()
    law: str = ""
    """The frozen set that the verdict is about, with the beginning of its digest; empty for all that there is."""
    added: tuple[str, ...] = ()
    """Items that are not in that set: they are judged and not counted."""
    gone: tuple[str, ...] = ()
    """What that set names and the contracts have no more."""
    reworded: tuple[str, ...] = ()
    """Planned contracts whose statement is another than in that set."""


@dataclass(frozen=True, kw_only=True)
class Footer:
    """The last line of a run; a run without it is refused as cut off.

    `digest` is the SHA-256 of the lines above and of this line's other fields; with a key, `signature` is the
    HMAC-SHA256 of the same.
    """

    digest: str
    results: int
    word: Word
    exit_code: int
    finished: str
    signature: str = ""


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
class Before:
    """What became of an item in an earlier run, by the verdict on that run, and the seconds that it took there."""

    outcome: Outcome
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """An earlier run with which this one is compared: what was judged or broken there must be judged now.

    Args:
        of: the stack and the suite of that run, and when it began.
        judged: what held, was violated, deviated or was broken there.
        before: every planned item of that run, by its name; empty in a record of an older suite.
        missing: why there is no such run; `of` is then where it was looked for, and the verdict is incomplete at best.
    """

    of: str
    judged: tuple[Item, ...]
    before: Mapping[str, Before] = field(default_factory=dict)
    missing: str = ""


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
    baseline: Baseline | None = None
    cut_off: bool = False
    """Whether it did not finish. The results so far are reported, and the verdict is incomplete."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something wrong with the run itself: a stale deviation, an unplanned result, an offered question that was never
    answered, a suite that does not catch its own mutants, an item that an earlier run judged and this one does not, an
    earlier run that is not there, a run that did not finish."""

    kind: Literal["deviation", "plan", "claim", "suite", "baseline", "no baseline", "cut off"]
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
    added: tuple[Result, ...] = ()
    """Results that are not counted: the frozen set of contracts does not have them."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.word]


Fate = Literal["killed", "survived", "wrong words", "crashed", "void"]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The fate of one mutant: killed with its declared words, survived, or proved nothing.

    `loss` and `norm` say whether the loss or the gradient norm by itself would have shown the bug, where the check
    trained the mutant: "agrees" (it would not), or the two numbers. `seconds` is the time that the judgement took.
    """

    mutant: str
    of: str
    case: str
    fate: Fate
    words: str
    bugs: tuple[str, ...] = ()
    loss: str = ""
    norm: str = ""
    seconds: float = 0.0
