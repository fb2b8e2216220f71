"""The self-test of the dist tier: its mutants as tests of one run, which `rankproof selftest --profile dist` starts.

The ranks of its case judge each mutant, and the ranks outlive it: one that leaves the process group unusable costs a
new group. Rank 0 writes the kill matrix. This is a pytest plugin; the tests are in `dist_selftest_suite`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.contract import LAW, Contract, Law, Mutant
from contracts.court.judge import fate_of, judge
from contracts.harness import parties, selftest
from contracts.harness.families import read_checks
from contracts.harness.garbage_collection import collect_seldom
from contracts.harness.loss_curves import Curves, Watched
from contracts.harness.plugin import SLOW_S, result_of
from contracts.harness.progress import WATCHED, Told
from contracts.harness.promise import PROPERTY
from contracts.harness.selftest import Matrix
from contracts.instruments.ranks import here
from contracts.spec import codec
from contracts.spec.records import Item, Kill, Result

CURVES = "rankproof.curves"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One judgement: of a mutant, or of the reference where there is no mutant."""

    contract: Contract
    case: str
    mutant: Mutant | None = None

    @property
    def name(self) -> str:
        return f"{self.contract.id}-{self.case}-{self.mutant.name if self.mutant else 'baseline'}"

    def judged(self) -> tuple[Result, Curves]:
        """The result of this rank, and what loss and gradient norm by themselves would have shown."""
        watched = Watched(parties.load("reference") if self.mutant is None else self.mutant.make())
        return judge(self.contract, self.case, watched), watched.curves


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rankproof trials")
    group.addoption("--trials", type=Path, required=True, metavar="FILE", help="where the kill matrix goes, as JSON")
    group.addoption("--only", default="", metavar="A,B", help="only contracts whose ids begin so")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    read_checks()
    each = [pytest.param(trial, marks=_mark(trial), id=trial.name) for trial in _trials(part(metafunc.config))]
    metafunc.parametrize("trial", each)


def part(config: pytest.Config) -> Law:
    """The contracts of the dist tier that were asked for."""
    only = tuple(config.getoption("only").split(","))
    return selftest.part_of(LAW, [id for id in LAW.contracts if id.startswith(only)], "dist")


def _trials(law: Law) -> Iterator[Trial]:
    """The trials that this world has enough ranks for."""
    for contract in law.contracts.values():
        fitting = [case for case in contract.asked if _fits(contract, case)]
        yield from (Trial(contract=contract, case=case) for case in fitting)
    for mutant in law.tried():
        contract = law.contracts[mutant.of]
        if _fits(contract, mutant.case):
            yield Trial(contract=contract, case=mutant.case, mutant=mutant)


def _fits(contract: Contract, case: str) -> bool:
    return contract.ranks(case) <= here().world


def _mark(trial: Trial) -> pytest.MarkDecorator:
    ranks = trial.contract.ranks(trial.case)
    return pytest.mark.dist(world=ranks, timeout=SLOW_S if trial.contract.slow else None)


def put(trial: Trial, node: pytest.Item) -> None:
    """Judge a trial on this rank. A violated or broken one fails the test, so that the ranks agree on it."""
    result, curves = trial.judged()
    node.user_properties += [(PROPERTY, codec.dumps(result)), (CURVES, codec.dumps(curves))]
    if result.outcome in ("violated", "broken"):
        pytest.fail(f"{result.outcome}: {result.words}", pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    collect_seldom()
    if here().rank == 0:
        config.pluginmanager.register(_Clerk(config), "rankproof-clerk")


class _Clerk:
    """Records on rank 0 the outcome of each trial."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._trials: dict[str, Trial] = {}
        self._baseline: list[Result] = []
        self._kills: list[Kill] = []
        self._tell = Told(config.getoption("trials").with_name(WATCHED))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._trials = {node.nodeid: node.callspec.params["trial"] for node in session.items}  # type: ignore[attr-defined]
        self._tell.planned(len(self._trials))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        trial = self._trials[report.nodeid]
        result = result_of(report, Item(id=trial.contract.id, case=trial.case))
        if result is None:
            return
        if trial.mutant is None:
            self._baseline.append(result)
        else:
            self._kills.append(_kill(trial.mutant, result, report))
        self._tell(result if trial.mutant is None else self._kills[-1])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.exitstatus = pytest.ExitCode.OK  # a mutant that is caught fails its test; the matrix decides
        law = part(self._config)
        self._kills += [
            _left(mutant, law) for mutant in law.tried() if not _fits(law.contracts[mutant.of], mutant.case)
        ]
        matrix = Matrix(
            baseline=tuple(self._baseline),
            kills=tuple(self._kills),
            unguarded=law.unguarded(),
        )
        self._config.getoption("trials").write_text(json.dumps(codec.encode(matrix)), encoding="utf-8")


def _left(mutant: Mutant, law: Law) -> Kill:
    """The void fate of a mutant that needs more ranks than there are."""
    words = f"needs {law.contracts[mutant.of].ranks(mutant.case)} ranks, and there are {here().world}"
    return Kill(mutant=mutant.name, of=mutant.of, case=mutant.case, fate="void", words=words, bugs=mutant.bugs)


def _kill(mutant: Mutant, result: Result, report: pytest.TestReport) -> Kill:
    """The fate of a mutant, by the words of all ranks: the first rank to diverge need not be the one that says the
    declared words."""
    every = report.longreprtext
    told = [codec.loads(Curves, str(value)) for name, value in report.user_properties if name == CURVES]
    curves = told[-1] if told else Curves()
    said = replace(result, words=f"{result.words}\n{every}") if result.outcome == "violated" else result
    words = f"{result.outcome}: {result.words}"
    if result.outcome == "violated" and mutant.says not in result.words and mutant.says in every:
        words = next(line for line in every.splitlines() if mutant.says in line)
    fate = fate_of(said, mutant.says)
    return Kill(
        mutant=mutant.name, of=mutant.of, case=mutant.case, fate=fate, words=words, bugs=mutant.bugs,
        loss=curves.loss, norm=curves.norm, seconds=result.seconds,
    )  # fmt: skip
