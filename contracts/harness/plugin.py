"""The pytest plugin: brings a stack before the law and lets one verdict decide.

Hooks stand in the order in which pytest calls them; what they do stands in `gate`, `profiles` and `parties`. With
xdist the controller plans, records and judges, and the workers only run: results travel in the reports.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contracts.contract import LAW
from contracts.court import deviations, report
from contracts.court.judge import DEADLINE_S
from contracts.harness import parties, profiles
from contracts.harness.gate import Gate
from contracts.harness.profiles import DEFAULT, NAMED
from contracts.spec import codec
from contracts.spec.errors import Refused, Unreachable, refuse
from contracts.spec.records import Item, Result, Verdict

# Only where torchrun has started several ranks: in one process the ranks plugin would have nothing to do.
pytest_plugins = ["contracts.harness.ranks.plugin"] if int(os.environ.get("WORLD_SIZE") or 1) > 1 else []

GATE = pytest.StashKey[Gate]()
VERDICT = pytest.StashKey[Verdict]()
_PROPERTY = "lanegate.result"

NEEDS = {
    "unit": "no promise of this profile is judged in one process",
    "gpu": "the gpu tier needs one CUDA device, and no promise of it has a check yet; see snapshots/contracts.md",
    "dist": "the dist tier needs `torchrun --nproc-per-node N -m pytest -m dist`, and no promise of it has a check "
    "yet; see snapshots/contracts.md",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanegate", "conformance of a training stack")
    group.addoption("--stack", default="reference", help="the stack under test: a name or package.module:Name")
    group.addoption("--with", dest="assistants", action="append", default=[], metavar="PARTY",
                    help="who answers what the stack does not (a launcher's parser); `none` for nobody")  # fmt: skip
    group.addoption("--profile", default=DEFAULT, help=f"any of {', '.join(NAMED)}, ids and prefixes of ids")
    group.addoption("--deviations", type=Path, help="TOML file of declared deviations")
    group.addoption("--report", type=Path, metavar="DIR", help="write the run as JSON lines to DIR/run.jsonl")
    group.addoption("--selftest", action="store_true", help="put the suite's own mutants before the law first")
    group.addoption("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="what one case may take")
    group.addoption("--gate", action="store_true", help="let the verdict decide the exit code: incomplete is red")


def pytest_configure(config: pytest.Config) -> None:
    for tier, needs in {"unit": "one CPU process", "gpu": "one CUDA device", "dist": "several ranks"}.items():
        config.addinivalue_line("markers", f"{tier}: a promise or test that needs {needs}")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if _gating(config) and not hasattr(config, "workerinput"):
        gate = _gate(config)
        try:
            gate.open(config.getoption("report"))
        except Refused as error:
            raise pytest.UsageError(str(error)) from error
        if config.getoption("selftest"):
            gate.prove_the_suite()
        config.pluginmanager.register(_Collector(gate), "lanegate-collector")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "promise" not in metafunc.fixturenames:
        return
    tier = next(mark.name for mark in metafunc.definition.iter_markers() if mark.name in NEEDS)
    gate = _gate(metafunc.config)
    items = [i for i in gate.plan.items if i.id in LAW.contracts and LAW.contracts[i.id].tier == tier]
    if not items:
        nothing = pytest.param(None, marks=pytest.mark.skip(reason=NEEDS[tier]), id="nothing")
        metafunc.parametrize("promise", [nothing])
        return
    metafunc.parametrize("promise", items, ids=[f"{item.id}-{item.case}" for item in items], indirect=True)


@pytest.fixture
def promise(request: pytest.FixtureRequest) -> Promise:
    """One item of the plan, ready to be put to the stack under test."""
    return Promise(_gate(request.config), request.param, request.node)


class Promise:
    """One item of the plan as a test."""

    def __init__(self, gate: Gate, item: Item, node: pytest.Item) -> None:
        self._gate, self._item, self._node = gate, item, node

    def keep(self) -> None:
        """Judge it. The result travels in the test's report; pytest's own outcome follows from it."""
        result = self._gate.judge(self._item)
        self._node.user_properties.append((_PROPERTY, codec.dumps(result)))
        words = "\n".join(f"{label:>12}  {text}" for label, text in report.details(self._gate.run(), result))
        if result.outcome == "violated":
            declared = self._gate.declared(result)
            if declared is not None:
                pytest.xfail(f"declared by {declared.owner} until {declared.expires}: {declared.reason}")
            pytest.fail(f"{result.item} is violated\n{words}", pytrace=False)
        if result.outcome == "broken":
            pytest.fail(f"{result.item} is broken: {result.words}\n{words}", pytrace=False)
        if result.outcome != "holds":
            pytest.skip(f"{result.outcome}: {result.words}")


class _Collector:
    """Takes the results in, from this process or from xdist's workers."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        said = [value for name, value in report.user_properties if name == _PROPERTY]
        if said:  # the last one: a test that is run again keeps the properties of its first run
            self._gate.add(codec.loads(Result, str(said[-1])))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if GATE not in config.stash or not _gating(config) or hasattr(config, "workerinput"):
        return
    if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        return  # no footer: the record stays unfinished and is refused by every reader
    verdict = config.stash[GATE].close()
    config.stash[VERDICT] = verdict
    if config.getoption("gate") and verdict.exit_code:
        session.exitstatus = verdict.exit_code


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if VERDICT not in config.stash:
        return
    verdict = config.stash[VERDICT]
    terminalreporter.section("lanegate")
    for fault in verdict.faults:
        terminalreporter.write_line(f"fault ({fault.kind}): {fault.words}")
    folder = config.getoption("report")
    if folder is not None:
        terminalreporter.write_line(f"record: {folder / 'run.jsonl'}; read it with `lanegate report {folder}`")
    terminalreporter.write_line(report.headline(verdict))


def _gating(config: pytest.Config) -> bool:
    return bool(config.getoption("gate") or config.getoption("report"))


def _gate(config: pytest.Config) -> Gate:
    """The gate of this session, built once, from the options."""
    if GATE in config.stash:
        return config.stash[GATE]
    import contracts.checks  # the law itself; here, so that `pytest --help` does not read it

    assert contracts.checks
    name, declared, seconds = (config.getoption(option) for option in ("stack", "deviations", "deadline"))
    try:
        if seconds <= 0:
            raise refuse("deadline", seconds, "is not a time", "give the seconds that one case may take")
        subject = parties.load(name, deadline_s=seconds)
        quick = not config.getoption("gate")
        gate = Gate(
            subject=subject,
            origin=name,
            assistants=parties.assistants(subject, tuple(config.getoption("assistants")), quick=quick),
            profile=config.getoption("profile"),
            plan=profiles.plan(LAW, config.getoption("profile")),
            deviations=() if declared is None else deviations.load(declared),
            deadline_s=seconds,
        )
    except (Refused, Unreachable) as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[GATE] = gate
    return gate
