"""The plugin: what is on disk when, who decides the exit code, how deviations and profiles are read."""

import datetime
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.court import deviations, profiles, record, report
from contracts.harness.contract_count import contract_count
from contracts.spec import Refused
from contracts.spec.records import EXIT_CODES, Item
from contracts.stacks.megatron.flag_table import FlagTable
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.law import LAW
from tests_unit._parties.running import BAD, RANKPROOF, Done, environment, needs, printed, ran, side_by_side

CONFORMANT, VIOLATED, INCOMPLETE, BROKEN, NOTHING_RAN = (
    EXIT_CODES[word] for word in ("conformant", "violated", "incomplete", "broken", "nothing ran")
)
USAGE = 2

PROJECT = {
    "conftest.py": 'pytest_plugins = ["contracts.harness.plugin"]\n',
    "test_law.py": 'from contracts.harness.suite import test_unit as test_law\n__all__ = ["test_law"]\n',
    "test_own.py": "import gc\nimport pytest\n@pytest.mark.unit\ndef test_of_the_project():\n"
    "    assert not gc.isenabled(), 'ours'\n",
}
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload", "--rankproof-with=none")
TOPO_02 = "--rankproof-profile=TOPO-02"
GATE, STACK = "--rankproof-gate", "--rankproof-stack"
LAW_ALONE = (*PYTEST, "test_law.py", TOPO_02, "--rankproof-report=out")
CHECK = ("check", "--with", "none", "--report", "out", "--stack", f"{BAD}:ForgetsPipeline")
PLANNED = 18  # TOPO-02, TOPO-02a and TOPO-02b with six cases each

SOON = (datetime.date.today() + datetime.timedelta(days=90)).isoformat()


def _entry(**changes: str | None) -> str:
    """A deviation in TOML: what ForgetsPipeline breaks in TOPO-02, the promise with a pipeline of 13."""
    fields: dict[str, str | None] = {
        "id": "TOPO-02", "case": "pp13-on-52", "says": "dp is #", "reason": "the mesh is rebuilt in May", "issue": "#7",
        "owner": "mesh", "expires": SOON,
    } | changes  # fmt: skip
    return "[[deviation]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items() if value)


ITEM = "TOPO-02[pp13-on-52]"
HOLDS = "TOPO-02[tp2-ep2-on-8]"
LONG_AGO = "2026-01-31"

DEVIATIONS: dict[str, tuple[str, str, int, str]] = {  # file, profile, exit code, words
    "declared": (_entry(), ITEM, CONFORMANT, "declared by mesh until"),
    "declared-date": (_entry(expires=None) + f"expires = {SOON}\n", ITEM, CONFORMANT, f"until {SOON}"),
    "none-declared": ("", ITEM, VIOLATED, "dp is"),
    "expired": (_entry(expires=LONG_AGO), ITEM, VIOLATED, f"expired on {LONG_AGO}"),
    "stale": (_entry(case="tp2-ep2-on-8"), HOLDS, VIOLATED, "is stale: the contract now holds"),
    "unmatched": (_entry(case="pp99"), ITEM, VIOLATED, "matches nothing in the plan"),
    "unmatched-id": (_entry(id="TOPO-99"), ITEM, VIOLATED, "matches nothing in the plan"),
    "wider": (_entry(case="*"), f"{ITEM},{HOLDS}", VIOLATED, "is wider than what fails: tp2-ep2-on-8 hold"),
    "covered-twice": (_entry() + _entry(case="pp13-*"), ITEM, VIOLATED, "is covered by 2 deviations"),
    "not-for-this-profile": (_entry(id="ARGV-01", case="*"), HOLDS, CONFORMANT, "CONFORMANT"),
    "other-words": (_entry(says="ep is #"), ITEM, VIOLATED, "matches none of the words: dp is"),
    "no-words": (_entry(says=None), ITEM, USAGE, "TOPO-02[pp13-on-52] do not say what they forgive"),
    "taken-from-another": ('[[taken]]\nfile = "declared.toml"\ncases = ["TOPO-02[pp13-on-52]"]\n', ITEM, CONFORMANT,
                           "declared by mesh until"),
    "all-faults-at-once": (_entry(reason=" ") + _entry(expires="soon"), ITEM, USAGE, "deviation 2.expires = 'soon'"),
}  # fmt: skip

FAULTY: dict[str, tuple[str, str]] = {  # file, words of its refusal
    "malformed": ("[[deviation]\n", "is not TOML"),
    "one-table": (_entry().replace("[[deviation]]", "[deviation]"), "with double brackets"),
    "another-table": ("[exceptions]\n", "exceptions = {}: is not a table of this file"),
    "field-missing": (_entry(owner=None), "deviation 1.owner"),
    "field-unknown": (_entry(until="2027-01-01"), "until"),
    "field-of-another-type": (_entry(issue=None) + "issue = 7\n", "deviation 1.issue = 7"),
    "reason-empty": (_entry(reason="  "), "deviation 1.reason = '  ': is empty"),
    "no-date": (_entry(expires="next spring"), "'next spring': is not a date"),
    "a-moment": (_entry(expires=None) + f"expires = {SOON}T00:00:00\n", "deviation 1.expires"),
    "wildcards-alone": (_entry(says="# * #"), "deviation 1.says = '# * #': has no word in it"),
    "no-tables": ("deviation = [1, 2]\n", "is no list of tables"),
    "nested": (f"a = {'[' * 3000}{']' * 3000}\n", "is not TOML"),
    "a-number-too-long": (f"a = {'9' * 5000}\n", "is not TOML"),
    "taken-from-itself": ('[[taken]]\nfile = "deviations.toml"\ncases = []\n', "takes entries from itself"),
    "taken-from-nowhere": ('[[taken]]\nfile = "other.toml"\ncases = []\n', "other.toml': cannot be read"),
    "taken-without-a-case": ('[[taken]]\nfile = "other.toml"\n', "taken 1.cases"),
    "not-text": ("\udcff", "is not TOML"),
}

RUNS: dict[str, tuple[object, ...]] = {
    "worker-dies": (*LAW_ALONE, GATE, "-p", "xdist", "-n2", f"{STACK}={BAD}:EndsAWorker"),
    "violated": (*LAW_ALONE, GATE, f"{STACK}={BAD}:ForgetsPipeline"),
    "violated-by-two": (*LAW_ALONE, GATE, "-p", "xdist", "-n2", f"{STACK}={BAD}:ForgetsPipeline"),
    "asked-of-nobody": (*LAW_ALONE, f"{STACK}={BAD}:ClaimsNothing"),
    "asked-of-nobody-gating": (*LAW_ALONE, GATE, f"{STACK}={BAD}:ClaimsNothing"),
    "no-gate-no-report": (*PYTEST, "test_law.py", TOPO_02, f"{STACK}={BAD}:ForgetsPipeline"),
    "own-test-fails": (*PYTEST, TOPO_02, GATE),
    "xfail": (*LAW_ALONE, GATE, "-rx", f"{STACK}={BAD}:ForgetsPipeline", "--rankproof-profile=" + ITEM,
              "--rankproof-deviations=declared.toml"),
    "bad-stack": (*LAW_ALONE, GATE, f"{STACK}=nobody"),
    "bad-deadline": (*LAW_ALONE, GATE, "--rankproof-deadline=0"),
    "bad-folder": (*PYTEST, "test_law.py", GATE, TOPO_02, "--rankproof-report=test_law.py/out"),
    "killed": ("check", "--with", "none", "--report", "out", "--profile", "TOPO-02",
               "--stack", f"{BAD}:IsKilledHalfway"),
    **{f"deviations-{name}": (*CHECK, "--profile", profile, "--deviations", f"{name}.toml")
       for name, (_, profile, _, _) in DEVIATIONS.items()},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Done]:
    declared = {f"{name}.toml": text for name, (text, *_) in DEVIATIONS.items()}
    return side_by_side(RUNS, folder, _=PROJECT | declared)


def _judged(folder: Path, name: str) -> tuple[str, set[tuple[str, str, str, str]]]:
    run, footer = record.load(folder / name / "out")
    return footer.word, {(each.id, each.case, each.outcome, each.words) for each in run.results}


def test_the_plan_is_on_disk_before_anything_runs(runs: dict[str, Done], folder: Path) -> None:
    out = folder / "killed/out"
    assert runs["killed"].returncode == BROKEN
    assert "ended with SIGKILL before there was a verdict" in runs["killed"].stderr
    assert {path.name for path in out.iterdir()} == {"run.jsonl.part", *report.FILES}
    lines: list[dict[str, Any]] = [json.loads(line) for line in (out / "run.jsonl.part").read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["header", "plan", "result"]
    assert len(lines[1]["plan"]["items"]) == PLANNED
    second = Item(**lines[1]["plan"]["items"][1])
    assert f"before there was a verdict; it was asked {second} of " in " ".join(runs["killed"].stderr.split())


def test_an_interrupt_from_the_keyboard_ends_the_run_without_a_verdict(tmp_path: Path) -> None:
    words = ["check", "--with", "none", "--report", "out", "--profile", "PAT-01[nam56r]", "--stack", f"{BAD}:Hangs"]
    heard = ("env", "--default-signal=INT")  # a job in the background of a script inherits an ignored SIGINT
    running = subprocess.Popen([*heard, RANKPROOF, *words], cwd=tmp_path, env=environment(), start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    part = tmp_path / "out/run.jsonl.part"
    until = time.monotonic() + 30
    while not (part.exists() and part.read_text().count("\n") == 2) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)  # into the question
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole group
    said, complained = running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGINT, complained
    assert "stopped by SIGINT before there was a verdict" in complained
    assert "Traceback" not in said + complained
    assert said.splitlines()[-1].startswith("INCOMPLETE: ")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.jsonl.part", *report.FILES}


def test_a_run_that_was_cut_off_is_refused_by_every_reader(runs: dict[str, Done], folder: Path) -> None:
    assert runs["killed"].returncode == BROKEN
    with pytest.raises(Refused, match="holds a run that did not finish"):
        record.load(folder / "killed/out")
    with pytest.raises(Refused, match="holds a run that did not finish"):
        record.load(folder / "killed/out/run.jsonl.part")
    (folder / "killed/renamed.jsonl").write_bytes((folder / "killed/out/run.jsonl.part").read_bytes())
    with pytest.raises(Refused, match="ends without a footer"):
        record.load(folder / "killed/renamed.jsonl")


@needs("xdist")
def test_two_workers_find_what_one_process_finds(runs: dict[str, Done], folder: Path) -> None:
    assert runs["violated"].returncode == runs["violated-by-two"].returncode == VIOLATED
    assert _judged(folder, "violated") == _judged(folder, "violated-by-two")


@needs("xdist")
def test_a_dead_worker_leaves_items_not_run_and_no_conformant_verdict(runs: dict[str, Done], folder: Path) -> None:
    assert runs["worker-dies"].returncode == INCOMPLETE, printed(runs["worker-dies"])[-600:]
    run, footer = record.load(folder / "worker-dies/out")
    missing = set(run.plan.items) - {result.item for result in run.results}
    assert (footer.word, missing) == ("incomplete", {Item(id="TOPO-02", case="pp4-tp2-ep3-on-72")})


def test_only_the_gate_option_decides_the_exit_code(runs: dict[str, Done], folder: Path) -> None:
    assert runs["asked-of-nobody"].returncode == 0, "18 skips, and no gate"
    assert "NOTHING RAN" in runs["asked-of-nobody"].stdout
    assert runs["asked-of-nobody-gating"].returncode == NOTHING_RAN
    assert _judged(folder, "asked-of-nobody") == _judged(folder, "asked-of-nobody-gating")


def test_without_gate_and_report_pytest_decides_the_exit_code(runs: dict[str, Done], folder: Path) -> None:
    done = runs["no-gate-no-report"]
    assert done.returncode == 1
    assert "VIOLATED:" not in done.stdout
    assert not (folder / "no-gate-no-report/out").exists()


def test_a_conformant_verdict_does_not_hide_a_failing_test_of_the_project(runs: dict[str, Done]) -> None:
    assert "CONFORMANT: reference" in runs["own-test-fails"].stdout
    assert runs["own-test-fails"].returncode == 1


def test_a_failing_test_shows_the_violation_with_everything_needed_to_rerun_it(runs: dict[str, Done]) -> None:
    said = printed(runs["violated"])
    for words in ("TOPO-02[pp13-on-52] is violated", "got dp is 52, expected 4", "contract ", "#bringup", "topology by",
                  f"rerun rankproof check --stack {BAD}:ForgetsPipeline --profile 'TOPO-02[pp13-on-52]'",
                  "explain rankproof explain TOPO-02"):  # fmt: skip
        assert words in said


def test_a_declared_deviation_is_an_expected_failure_with_its_owner(runs: dict[str, Done]) -> None:
    assert runs["xfail"].returncode == CONFORMANT, printed(runs["xfail"])[-400:]
    assert "1 xfailed" in runs["xfail"].stdout
    assert "declared by mesh until" in runs["xfail"].stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad-stack", "stack = 'nobody': is not a stack"),
        ("bad-deadline", "deadline = '0': is not a time"),
        ("bad-folder", "cannot be written: Not a directory"),
    ],
)
def test_bad_options_end_in_one_line_of_usage(name: str, words: str, runs: dict[str, Done]) -> None:
    done = runs[name]
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in done.stderr
    assert "Traceback" not in printed(done)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_every_branch_of_a_deviations_file_has_its_exit_code_and_words(name: str, runs: dict[str, Done]) -> None:
    _, _, code, words = DEVIATIONS[name]
    done = runs[f"deviations-{name}"]
    assert done.returncode == code, printed(done)[-600:]
    assert words in printed(done)


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_deviations_file_is_refused_with_the_fault(name: str, tmp_path: Path) -> None:
    text, words = FAULTY[name]
    file = tmp_path / "deviations.toml"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(Refused) as caught:
        deviations.load(file)
    assert words in str(caught.value)


def test_a_deviation_never_covers_an_error() -> None:
    # a run by hand: the stack that raises has no violation to declare
    from contracts.court.verdict import verdict
    from contracts.spec.codec import decode
    from contracts.spec.records import Deviation, Header, Plan, Result, Run, Subject

    subject = Subject(name="mine", version="1", origin="my:Stack", offers=frozenset(), layouts=frozenset())
    header = Header(schema=record.SCHEMA, suite="1", revision="0", profile=ITEM, subject=subject, assistants=(),
                    started="2026-06-15T00:00:00+00:00", command=(), python="3.11", platform="linux")  # fmt: skip
    item = Item(id="TOPO-02", case="pp13-on-52")
    fields = {"id": "TOPO-02", "case": "*", "reason": "r", "issue": "#7", "owner": "o", "expires": "2027-01-01",
              "says": "some words"}  # fmt: skip
    run = Run(header=header, plan=Plan(items=(item,)), deviations=(decode(Deviation, fields),),
              results=(Result(id=item.id, case=item.case, outcome="broken"),))  # fmt: skip
    assert verdict(run, datetime.date(2026, 6, 15)).word == "broken"


@needs("xdist")
def test_pytest_xdist_workers_share_the_contracts_and_give_one_verdict(tmp_path: Path) -> None:
    def rankproof(*asked: str, code: int) -> Done:
        words = [RANKPROOF, *asked, "--jobs", "2", "--with", "none", "--report", "out"]
        return ran(words, code=code, cwd=tmp_path, env=environment())

    done = rankproof("check", "--profile", "TOPO-02,TOPO-03", "--form", "json", code=CONFORMANT)
    planned = {(item.id, item.case) for item in profiles.plan(LAW, "TOPO-02,TOPO-03").items}
    assert {(each["id"], each["case"]) for each in json.loads(done.stdout)["results"]} == planned
    rankproof("selftest", "--only", "TOPO-02", code=CONFORMANT)
    kills = json.loads((tmp_path / "out/kills.json").read_text())["kills"]
    assert {kill["fate"] for kill in kills} == {"killed"}
    assert list(dict.fromkeys(kill["of"] for kill in kills)) == ["TOPO-02", "TOPO-02a", "TOPO-02b"]


def test_ranks_are_started_for_a_stack_that_answers_about_several() -> None:
    planned = profiles.plan(LAW, "dist4").promises
    assert contract_count(LAW, "dist4", Reference()) == len(planned)
    assert contract_count(LAW, "dist4", FlagTable()) == 0
    assert contract_count(LAW, "launch", FlagTable()) > 0
