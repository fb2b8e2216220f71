"""The pytest plugin: puts a stack under test and lets one verdict decide.

The hooks stand in the order in which pytest calls them; their work is done in `gate`, `profiles` and `parties`. With
xdist the controller plans, records and judges; the workers only run tests and send results in the reports. Under
torchrun every rank plans, judges, and draws the same verdict from the results that the ranks agreed on; rank 0 writes
it.
"""

from __future__ import annotations  # pytest 8.0 exports no TerminalReporter

import datetime
import gc
import json
import os
import sys
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.contract import LAW
from contracts.court import device, profiles, record, report, shards
from contracts.court.baseline import baseline, missing
from contracts.court.party import Broken
from contracts.court.profiles import ONE_PROCESS
from contracts.court.verdict import verdict
from contracts.harness import affected_items, checkout, kill_matrix, law_release, parties
from contracts.harness.families import read_checks
from contracts.harness.garbage_collection import collect_seldom
from contracts.harness.gate import Gate
from contracts.harness.promise import CODE, PROPERTY, Promise, assistants_of, deadline_of, deviations_of, without_torch
from contracts.instruments import accelerator
from contracts.instruments.ranks import here
from contracts.ranks.rank_environment import EQUAL, several
from contracts.spec import Refused, Unreachable, abilities_of, codec, interpreter
from contracts.spec.records import EXIT_CODES, Item, OnRanks, Result, Verdict, Violation
from rankproof import options, pytest_plugin

# Only where torchrun has started several ranks: in one process the ranks plugin would have nothing to do.
pytest_plugins = ["contracts.ranks.plugin"] if several(os.environ) else []

GATE = pytest.StashKey[Gate]()
VERDICT = pytest.StashKey[Verdict]()
_OF_RANKS = "ranks.verdict"  # the ranks plugin's account of a test that did not pass on all ranks

NEEDS = {
    "unit": "no contract of this profile is judged in one process",
    "gpu": "no contract of this profile is judged on a GPU",
    "dist": "no contract of this profile is judged by several ranks",
}
GPU = "gpu"  # a tier, its marker and its profile
SLOW_S = 240.0  # for a contract whose compiler starts cold on every rank


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.has_plugin(options.NAME):  # not installed, or plugins are not loaded by themselves
        pluginmanager.register(pytest_plugin, options.NAME)


def pytest_configure(config: pytest.Config) -> None:
    try:
        interpreter.refuse_without_assertions()
    except Refused as error:
        raise pytest.UsageError(str(error)) from None
    accelerator.ask_nvml()  # what is judged is asked in forks of this process
    for tier, needs in {"unit": "one CPU process", "gpu": "one CUDA device", "dist": "several ranks"}.items():
        config.addinivalue_line("markers", f"{tier}: a contract or test that needs {needs}")
    config.addinivalue_line("markers", "slow: a contract or test of one CPU process that takes more than a few seconds")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Local rank 0 of every other node also ends with the session's code: a launcher whose ranks all end with 0 waits
    five minutes for the other nodes."""
    code = yield
    if code and here().node > 0 and here().local_rank == 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))
    return code


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector waits, which saves a fifth of a collection that imports torch: little of it is garbage."""
    waits = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if waits:
            gc.freeze()
            gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if _judges(config):
        gate = _gate(config)
        if config.getoption("rankproof_selftest") and here().world > 1:
            raise pytest.UsageError(
                "--rankproof-selftest runs in one process; for several ranks: rankproof selftest --profile dist"
            )
        try:
            gate.open(options.setting(config, "report") if here().rank == 0 else None)
        except Refused as error:
            raise pytest.UsageError(str(error)) from error
        except Broken as error:
            pytest.exit(str(error), EXIT_CODES["broken"])
        if config.getoption("rankproof_selftest"):
            gate.prove_the_suite()
        config.pluginmanager.register(_Collector(gate), "rankproof-collector")


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test of `contracts.harness.suite` the planned cases of its tier."""
    tier = metafunc.function.__name__.removeprefix("test_")
    gate = _gate(metafunc.config)
    given = options.setting(metafunc.config, "shard")
    shared = gate.plan.items if given is None else shards.share(gate.plan.items, given)
    items = [i for i in shared if i.id in LAW.contracts and LAW.contracts[i.id].tier == tier]
    if tier == GPU and items and _asks_for_a_device(metafunc.config) and (missing := gate.missing_device(items[0])):
        raise pytest.UsageError(f"-m {GPU}: {missing}")  # skipped, it would be green
    if not items:
        nothing = (getattr(pytest.mark, tier), pytest.mark.skip(reason=NEEDS[tier]))
        metafunc.parametrize(options.CASE, [pytest.param(None, marks=nothing, id="nothing")])
        return
    unjudged = () if options.gating(metafunc.config) else without_torch()
    each = []
    for item in items:
        marks = (*_marks(gate, item), *(unjudged if LAW.contracts[item.id].of_numbers else ()))
        each.append(pytest.param(item, marks=marks, id=f"{item.id}-{item.case}"))
    metafunc.parametrize(options.CASE, each, indirect=True)


def _asks_for_a_device(config: pytest.Config) -> bool:
    """Whether tests of the gpu tier are wanted, and no others: `-m gpu`."""
    return str(config.getoption("markexpr", "")).strip() == GPU


def _marks(gate: Gate, item: Item) -> tuple[pytest.MarkDecorator, ...]:
    """The marks of an item: slow, or its tier; for several ranks both, and how many ranks, where there are that many. A
    test without the mark of its tier is run on no ranks."""
    contract = LAW.contracts[item.id]
    slow = (pytest.mark.slow,) if contract.slow else ()
    if contract.tier != "dist":
        return slow or (getattr(pytest.mark, contract.tier),)
    if gate.missing_ranks(item):
        return (pytest.mark.dist, *slow)
    limit = SLOW_S if contract.slow else None
    return (pytest.mark.dist(world=contract.ranks(item.case), timeout=limit), *slow)


def promise_of(request: pytest.FixtureRequest) -> Promise:
    """The fixture `rankproof_case`."""
    return Promise(_gate(request.config), request.param, request.node)


class _Collector:
    """Collects the results of this process, of xdist's workers or of other ranks."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._items: dict[str, Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for node in session.items:
            item = getattr(node, "callspec", None) and node.callspec.params.get(options.CASE)  # type: ignore[attr-defined]
            if isinstance(item, Item):
                self._items[node.nodeid] = item

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = result_of(report, self._items.get(report.nodeid))
        if found is not None:
            codes = {str(value) for name, value in report.user_properties if name == CODE}
            self._gate.add(_of_one_code(found, codes, self._gate.code))


def _of_one_code(result: Result, codes: set[str], own: str) -> Result:
    """A result, unless a process that shares the plan judged it by other code of the stack."""
    if codes <= {own}:
        return result
    words = f"a process that shares the plan judged other code of the stack: {', '.join(sorted(codes))}, here {own}"
    return Result(id=result.id, case=result.case, outcome="not run", words=words)


def result_of(report: pytest.TestReport, item: Item | None) -> Result | None:
    """The result that a report carries; None where it carries none.

    With several ranks it is the result of the first to diverge. If that rank could not report, because it died, hung
    or ran another test, the item is broken, in the words of the ranks plugin.
    """
    if report.when != "call" and not report.failed:
        return None
    said = [str(value) for name, value in report.user_properties if name == PROPERTY]
    of_ranks = [json.loads(str(value)) for name, value in report.user_properties if name == _OF_RANKS]
    # the last one: a test that is run again keeps the properties of its first run
    result = codec.loads(Result, said[-1]) if said and report.when == "call" else None
    if not of_ranks:
        return result
    first, words = of_ranks[-1]["primary"], of_ranks[-1]["words"]
    rank = first if first >= 0 else None
    # beside it, which may have died, those that failed before the test was ended for all
    failed = {int(each) for each, said in of_ranks[-1].get("outcomes", {}).items() if said == "failed"}
    ranks = tuple(sorted(failed | {first} - {-1}))
    if result is not None and result.outcome in ("violated", "broken"):
        return replace(result, rank=rank, ranks=ranks, on_ranks=_on_ranks(of_ranks[-1]))
    if item is None:
        return None
    return Result(id=item.id, case=item.case, outcome="broken", words=words, rank=rank, ranks=ranks)


def _on_ranks(of_ranks: Mapping[str, Any]) -> tuple[OnRanks, ...]:
    """What each rank that reached its end found wrong; ranks that found the same stand together."""
    found: dict[tuple[Violation, ...], list[int]] = {}
    for rank, pairs in of_ranks.get("properties", {}).items():
        said = [str(value) for name, value in pairs if name == PROPERTY]
        result = codec.loads(Result, said[-1]) if said else None
        if result is not None and result.outcome == "violated":
            found.setdefault(result.parts, []).append(int(rank))
    passed = [int(rank) for rank, outcome in of_ranks.get("outcomes", {}).items() if outcome == "passed"]
    if found and passed:
        found[()] = passed
    return tuple(OnRanks(ranks=tuple(ranks), violations=parts) for parts, ranks in found.items())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if GATE not in config.stash or not _judges(config):
        return
    if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        return  # no footer: the record stays unfinished and is refused by every reader
    try:
        judged = config.stash[GATE].close()
    except Broken as error:  # no footer here either
        pytest.exit(str(error), EXIT_CODES["broken"])
    config.stash[VERDICT] = judged
    if config.getoption("rankproof_gate") and judged.exit_code:
        session.exitstatus = judged.exit_code


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if VERDICT not in config.stash:
        return
    judged = config.stash[VERDICT]
    terminalreporter.section("rankproof")
    for fault in judged.faults:
        terminalreporter.write_line(f"fault ({fault.kind}): {fault.words}")
    folder = options.setting(config, "report")
    if folder is not None:
        terminalreporter.write_line(f"record: {folder / 'run.jsonl'}; read it with `rankproof report {folder}`")
    terminalreporter.write_line(report.headline(judged))


def _judges(config: pytest.Config) -> bool:
    """Whether this process draws the verdict: not a worker of xdist, but every rank, so that all end with one code."""
    return options.gating(config) and not hasattr(config, "workerinput")


def _gate(config: pytest.Config) -> Gate:
    """The gate of this session, built once, from the options."""
    if GATE in config.stash:
        return config.stash[GATE]
    collect_seldom()
    if options.setting(config, "device"):
        os.environ[device.VARIABLE] = options.setting(config, "device")
    alone = GPU if _asks_for_a_device(config) else ONE_PROCESS
    profile = options.setting(config, "profile") or ("dist" if here().world > 1 else alone)
    name = options.setting(config, "stack") or "reference"
    given, compared = options.setting(config, "proof"), options.setting(config, "baseline")
    try:
        device.refuse_absent()
        seconds = deadline_of(config)
        if (at := options.setting(config, "at")) is not None:
            checkout.first(name, at)
        subject = parties.load(name, deadline_s=seconds)
        quick = not config.getoption("rankproof_gate")
        release = options.setting(config, "law")
        read_checks(*(profiles.beginnings(profile) if release is None else ()))
        plan = profiles.plan(LAW, profile, abilities_of(subject))
        if release is not None:
            plan = law_release.pinned(LAW, plan, law_release.load(release))
        if here().world > 1:
            plan = profiles.of_several_ranks(LAW, plan)
        gone = "" if compared is None else record.absent(compared)
        earlier, closing = (None, None) if compared is None or gone else record.load(compared)
        words = ""
        if (of := options.setting(config, "changed")) is not None:
            places = {} if earlier is None else earlier.header.subject.places
            plan, words = affected_items.first(plan, subject, affected_items.changed(of), places)
        proved = None if given is None else kill_matrix.load(given)
        ranks = config.pluginmanager.getplugin("ranks")
        gate = Gate(
            backend="" if ranks is None else ranks.backend.name,
            subject=subject,
            origin=name,
            assistants=assistants_of(config, subject, quick=quick),
            profile=profile,
            plan=plan,
            changed=words,
            deviations=deviations_of(options.setting(config, "deviations")),
            deadline_s=seconds,
            proof="" if proved is None else proved.words(),
            unfit={} if proved is None else proved.unfit(LAW),
        )
        if earlier is not None and closing is not None and _judges(config):
            judged = verdict(earlier, datetime.datetime.fromisoformat(closing.finished).date())
            gate.baseline = baseline(earlier, judged, gate.header)
        elif gone:
            gate.baseline = missing(str(compared), gone)
    except (Refused, Unreachable) as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[GATE] = gate
    equal: dict[str, object] = {"code of the stack": gate.code}
    config.stash[EQUAL] = equal
    return gate
