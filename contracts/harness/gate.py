"""One run of the gate: the stack, the plan, the results so far, and the verdict at the end.

It does not import pytest; the plugin feeds it. So a loop can drive a run as well (`selftest`).
"""

import datetime
import functools
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from contracts.contract import LAW, Contract
from contracts.court import device, record
from contracts.court.deviations import covers
from contracts.court.judge import DEADLINE_S, judge
from contracts.court.plain_text import fit
from contracts.court.verdict import declared, in_force, not_judged, verdict
from contracts.harness import parties, power, selftest
from contracts.harness.families import read_checks
from contracts.instruments import accelerator
from contracts.instruments.ranks import here
from contracts.spec import NotOffered, Party, codec, interpreter, questions
from contracts.spec.records import (
    SCHEMA,
    Baseline,
    Choice,
    Deviation,
    Header,
    Item,
    Kill,
    Plan,
    Result,
    Run,
    Unclaimed,
    Unfit,
    Verdict,
)
from contracts.spec.redaction import redact_words, secrets_here


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass
class Gate:
    """A run in progress."""

    subject: Party
    origin: str
    assistants: tuple[tuple[str, Party], ...]
    profile: str
    plan: Plan
    deviations: tuple[Deviation, ...] = ()
    results: list[Result] = field(default_factory=list)
    unclaimed: tuple[Unclaimed, ...] = ()
    kills: tuple[Kill, ...] = ()
    started: str = field(default_factory=utc_now)
    recorder: record.Recorder | None = None
    deadline_s: float = DEADLINE_S
    proof: str = ""
    unfit: Mapping[str, str] = field(default_factory=dict)
    baseline: Baseline | None = None
    changed: str = ""
    backend: str = ""

    def __post_init__(self) -> None:
        interpreter.refuse_without_assertions()

    def open(self, folder: Path | None) -> None:
        """Write header and plan before anything runs, and the contracts without a check, whose outcome is known.

        Raises:
            Broken: where this process does not find the suite's own known bug.
        """
        power.refuse_without(numbers=self._numbers)
        if folder is not None:
            self.recorder = record.Recorder(folder)
            compared = () if self.baseline is None else (self.baseline,)
            for entry in (self.header, self.plan, *self.deviations, *compared, *self._unfit):
                self.recorder.add(entry)
        for item in self.plan.items:
            if item.id in LAW.untested:
                self.add(Result(id=item.id, outcome="untested", words=LAW.untested[item.id].why))

    def prove_the_suite(self) -> None:
        """Judge the mutants of the planned contracts; their fates are part of the record."""
        law = selftest.part_of(LAW, self.plan.promises)
        matrix = selftest.run(law)
        self.kills = matrix.kills
        known = {*self.unfit}
        self.unfit = {**matrix.unfit, **self.unfit}
        for each in self._unfit:
            if self.recorder is not None and each.id not in known:
                self.recorder.add(each)

    @functools.cached_property
    def _declined(self) -> Mapping[str, Choice]:
        """The planned items that the stack declares it cannot build, on any recipe."""
        return {each.item: each for each in self.plan.choices if not each.instead}

    @property
    def _unfit(self) -> tuple[Unfit, ...]:
        """The planned contracts that are unfit."""
        return tuple(Unfit(id=id, words=self.unfit[id]) for id in self.plan.promises if id in self.unfit)

    def judge(self, item: Item) -> Result:
        """Judge one item, unless its contract is unfit."""
        if item.id in self.unfit:
            return not_judged(item, self.unfit[item.id])
        if self.apart:
            return Result(id=item.id, case=item.case, outcome="not run", words=self.apart)
        if str(item) in self._declined:
            lack = self._declined[str(item)]
            words = f"{self.subject.name}: {lack.why}"
            return Result(id=item.id, case=item.case, outcome="not offered", words=words, lack=lack.kind)
        contract = LAW.contracts[item.id]
        numbers = self._numbers and contract.of_numbers
        if words := power.at_the_start(numbers=numbers):  # also in the workers of xdist, which open nothing
            return Result(id=item.id, case=item.case, outcome="broken", words=words)
        missing = self.missing_ranks(item) or self.missing_device(item)
        if missing:
            return Result(id=item.id, case=item.case, outcome="not run", words=missing)
        helping = [assistant for _, assistant in self.assistants]
        return fit(judge(contract, item.case, self.subject, helping, deadline_s=self.deadline_s), self.known)

    def missing_ranks(self, item: Item) -> str:
        """Why there are not enough ranks for an item of the dist tier; empty when there are."""
        contract = LAW.contracts[item.id]
        needed = contract.ranks(item.case)
        if contract.tier != "dist" or (1 < here().world >= needed):
            return ""
        said = f"needs {needed} ranks, and there are {here().world}"
        by_torchrun = f"torchrun --nproc-per-node {needed} -m pytest -m dist"
        return f"{said}: `rankproof check --ranks {needed} --profile '{item}'`, or `{by_torchrun}`"

    def missing_device(self, item: Item) -> str:
        """Why an item of the gpu tier cannot be judged here; empty when it can be, and for every other tier."""
        if LAW.contracts[item.id].tier != "gpu" or accelerator.name() is not None:
            return ""
        return f"torch sees no CUDA device: where one is, `rankproof check --profile '{item}'`"

    def add(self, result: Result) -> None:
        """Take a result in; it is on disk before the next one starts."""
        self.results.append(result)
        if self.recorder is not None:
            self.recorder.add(result)

    def declared(self, result: Result) -> Deviation | None:
        """The deviation in force that declares a violation, if all of the violation is declared."""
        valid = in_force(self.deviations, self.header, today())
        if declared(result, valid).outcome != "deviates":
            return None
        return next(each for each in valid if covers(each, result.item))

    def close(self) -> Verdict:
        """Judge the run and write its footer.

        Raises:
            Broken: where this process, after all that the stack did in it, no longer finds the known bug.
        """
        power.refuse_without(numbers=self._numbers)
        if not isinstance(self.subject, parties.Absent):
            self.unclaimed = tuple(_unclaimed(self.subject, self.deadline_s, numbers=of_numbers(self.plan)))
        run = self.run()
        judged = verdict(run, today())
        if self.recorder is not None:
            for entry in (*self.unclaimed, *self.kills):
                self.recorder.add(entry)
            self.recorder.close(judged, utc_now())
        return judged

    def run(self) -> Run:
        """The run as it stands."""
        return Run(
            header=self.header,
            plan=self.plan,
            results=tuple(self.results),
            deviations=self.deviations,
            unclaimed=self.unclaimed,
            kills=self.kills,
            unfit=self._unfit,
            baseline=self.baseline,
        )

    @functools.cached_property
    def _numbers(self) -> bool:
        """Whether numbers are compared, and can be."""
        return of_numbers(self.plan) and importlib.util.find_spec("torch") is not None

    @functools.cached_property
    def apart(self) -> str:
        """How two processes differ that answer under one name; empty where all have the same code."""
        return parties.apart((self.header.subject, *self.header.assistants))

    @functools.cached_property
    def code(self) -> str:
        """The code that answers in this process; ranks and workers that share a plan must have the same."""
        return codec.dumps(sorted({each.code for each in self.header.subject.answering}))

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """The secrets of this process, taken once, before the stack is asked."""
        return secrets_here(os.environ, sys.argv)

    @functools.cached_property
    def header(self) -> Header:
        """Who judges whom; taken once, when the run opens."""
        header = Header(
            schema=SCHEMA,
            suite=suite_version(),
            revision=revision(),
            profile=self.profile,
            subject=parties.subject_of(self.subject, self.origin),
            assistants=tuple(parties.subject_of(party, name) for name, party in self.assistants),
            started=self.started,
            command=redact_words(sys.argv, self.known),
            python=platform.python_version(),
            interpreter=interpreter.settings(),
            platform=platform.platform(),
            proof=self.proof,
            device=device_of(self.plan),
            ranks=here().world,
            backend=self.backend,
            changed=self.changed,
        )
        return fit(header, self.known)


def of_numbers(plan: Plan) -> bool:
    """Whether a plan has contracts that need torch."""
    contracts = (LAW.contracts[item.id] for item in plan.items if item.id in LAW.contracts)
    return any(contract.of_numbers or contract.tier == "gpu" for contract in contracts)


def device_of(plan: Plan, ranks: int | None = None) -> Literal["cpu", "cuda"]:
    """The device on which so many ranks judge a plan: CUDA if a contract of it is judged there. One without numbers
    does not load torch to find out."""
    tiers = {LAW.contracts[item.id].tier for item in plan.items if item.id in LAW.contracts}
    if not of_numbers(plan):
        return "cpu"
    try:
        return "cuda" if any(device.device_of(tier, ranks) == "cuda" for tier in tiers) and device.count() else "cpu"
    except Exception:  # a torch that cannot be imported; each of its items says so
        return "cpu"


def _unclaimed(subject: Party, deadline_s: float, *, numbers: bool) -> list[Unclaimed]:
    """Questions that the subject does not claim and yet answers correctly. Each is tried on one case; those about
    numbers only where the plan has some, because they load torch."""
    found = []
    for question in questions().values():
        if question.name in subject.offers or (question.of_numbers and not numbers):
            continue
        if not _has(subject, question.name):
            continue
        read_checks()  # any contract may be the one that asks nothing else
        alone: Contract | None = next(
            (c for c in LAW.contracts.values() if c.asks == (question.name,) and c.tier == "unit"), None
        )
        if alone is None:
            continue
        case = next(iter(alone.cases))
        result = judge(alone, case, _Claiming(subject, question.name), deadline_s=deadline_s)
        if result.outcome == "holds":
            found.append(Unclaimed(question=question.name, evidence=f"{alone.id}[{case}] holds"))
    return found


def _has(subject: Party, name: str) -> bool:
    """Whether a subject has something for a question; one may decline when it is only looked up."""
    try:
        return hasattr(subject, name)
    except NotOffered:
        return False


class _Claiming:
    """The subject, as if it claimed one more question."""

    def __init__(self, subject: Party, question: str) -> None:
        self._subject = subject
        self.name, self.version = subject.name, subject.version
        self.layouts, self.labels = subject.layouts, subject.labels
        self.offers = frozenset({question})

    def __getattr__(self, name: str) -> object:
        return getattr(self._subject, name)


def suite_version() -> str:
    """The installed version of rankproof; "unknown" in a tree that was never installed."""
    try:
        return metadata.version("rankproof")
    except metadata.PackageNotFoundError:
        return "unknown"


def revision() -> str:
    """The suite's own git revision, with `+dirty`; "unknown" outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+dirty", "--abbrev=12", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"
