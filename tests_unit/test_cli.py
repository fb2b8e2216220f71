"""The command line as a user meets it: what each command prints, its exit code, and what bad input ends in."""

import json
import os
import re
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from syrupy.assertion import SnapshotAssertion

from contracts.court import record, report
from contracts.court.verdict import verdict
from contracts.harness.gate import today
from contracts.spec.records import (
    EXIT_CODES,
    FORMS,
    SCHEMA,
    Deviation,
    Fault,
    Form,
    Header,
    Item,
    Plan,
    Result,
    Run,
    Statement,
    Subject,
    Unclaimed,
)
from tests_unit._parties.running import BAD, RANKPROOF, ROOT, Done, environment, side_by_side

USAGE, UNREACHABLE, BROKEN = 2, EXIT_CODES["incomplete"], EXIT_CODES["broken"]
PRESET = "nam56r_h200_bf16_v1"
AWKWARD = "o'brien's \"run\" $HOME; échec"
EMIT = ("emit", PRESET, "--run", AWKWARD, "--nodes", "2", "--rendezvous", "node-0:29500")
CHECK = ("check", "--with", "none", "--report", "out")
SCHEMA_FILE = ROOT / "docs/schema/run-1.json"

RUNS: dict[str, tuple[object, ...]] = {
    "version": ("--version",),
    "help": ("--help",),
    "check": (*CHECK, "--stack", f"{BAD}:ForgetsPipeline", "--profile", "TOPO-02,PREC-04", "--deviations", "d.toml"),
    "check-json": (*CHECK, "--stack", f"{BAD}:Prints", "--profile", "PAT-01", "--form", "json"),
    "check-junit": (*CHECK, "--profile", "PAT-01", "--form", "junit"),
    "list": ("list", "--profile", "TOPO-02,PREC-04", "--cases"),
    "explain": ("explain", "TOPO-02"),
    "explain-untested": ("explain", "PREC-04b"),
    "explain-promise": ("explain", "GATE-15a"),
    "emit": EMIT,
    "emit-json": (*EMIT, "--json"),
    "emit-set": ("emit", PRESET, "--set", "optim.lr=1e-3", "--set", "seed=7", "--mode", "author_dp", "--json"),
    "selftest": ("selftest", "--only", "TOPO-0", "--with", "none", "--report", "kills"),
    # bad input
    "stack-unknown": (*CHECK, "--stack", "refrence"),
    "stack-without-module": (*CHECK, "--stack", "no.such.module:Stack"),
    "stack-without-class": (*CHECK, "--stack", f"{BAD}:NoSuchStack"),
    "assistant-unknown": ("check", "--with", "megatorn", "--report", "out"),
    "command-unknown": (*CHECK, "--stack", "launched:no-such-command --serve"),
    "megatron-missing": (*CHECK, "--stack", "megatron==0.0.1"),
    "deadline-negative": (*CHECK, "--deadline", "-1"),
    "report-in-a-file": ("check", "--with", "none", "--profile", "PAT-01", "--report", "d.toml/out"),
    "deviations-broken": (*CHECK, "--deviations", "broken.toml"),
    "deviations-missing": (*CHECK, "--deviations", "missing.toml"),
    "recipe-unknown": ("emit", "nam56r_h200_bf16"),
    "mode-unknown": ("emit", PRESET, "--mode", "native"),
    "override-unknown": ("emit", PRESET, "--set", "optim.lrr=3"),
    "override-without-value": ("emit", PRESET, "--set", "optim.lr"),
    "override-twice": ("emit", PRESET, "--set", "optim.lr=1", "--set", "optim.lr=2"),
    "override-of-another-type": ("emit", PRESET, "--set", "depth=many"),
    "deprecated": ("emit", "nam52_h200_dense_pinned_v1"),
    "nodes-without-rendezvous": ("emit", PRESET, "--nodes", "2"),
    "emit-not-offered": ("emit", PRESET, "--stack", f"{BAD}:Hangs"),
    "emit-broken": ("emit", PRESET, "--stack", f"{BAD}:AnswersNan"),
    "id-unknown": ("explain", "TOPO-2"),
    "profile-of-promises": (*CHECK, "--profile", "GATE-04"),
    "prefix-unknown": ("selftest", "--only", "NOPE"),
    "run-missing": ("report", "nowhere"),
    "run-is-an-empty-folder": ("report", "empty"),
    "run-is-not-text": ("report", "/bin/sh"),
    "run-is-something-else": ("report", "broken.toml"),
    "day-unknown": ("replay", "canned.jsonl", "--as-of", "yesterday"),
    "form-unknown": ("report", "canned.jsonl", "--form", "pdf"),
    # a recorded run
    **{f"report-{form}": ("report", "canned.jsonl", "--form", form) for form in FORMS},
    "report-verbose": ("report", "canned.jsonl", "--verbose"),
    "report-cut": ("report", "cut.jsonl"),
    "report-unfinished": ("report", "unfinished"),
    "report-part": ("report", "unfinished/run.jsonl.part", "--form", "json"),
    "report-planless": ("report", "planless/run.jsonl.part"),
    "replay-unfinished": ("replay", "unfinished"),
    "replay": ("replay", "canned.jsonl", "--as-of", "2026-06-15"),
    "replay-expired": ("replay", "canned.jsonl", "--as-of", "2027-01-01"),
    "replay-without": ("replay", "canned.jsonl", "--as-of", "2026-06-15", "--deviations", "none.toml"),
    "replay-late": ("replay", "gone.jsonl", "--as-of", "2027-01-01"),
    "report-no-date": ("report", "soon.jsonl"),
    "replay-gone": ("replay", "gone.jsonl", "--as-of", "2026-06-15"),
}  # fmt: skip

BAD_INPUT: dict[str, tuple[int, str]] = {  # exit code, words of the one error
    "stack-unknown": (USAGE, "stack = 'refrence': is not a stack; use one of reference, megatron"),
    "stack-without-module": (USAGE, "cannot be imported: No module named 'no'"),
    "stack-without-class": (USAGE, "has no NoSuchStack"),
    "assistant-unknown": (USAGE, "stack = 'megatorn': is not a stack"),
    "command-unknown": (UNREACHABLE, "no-such-command --serve' cannot be started"),
    "megatron-missing": (UNREACHABLE, "0.0.1 is not installed: make it with `make megatron MEGATRON=0.0.1`"),
    "deadline-negative": (USAGE, "-1"),
    "report-in-a-file": (USAGE, "cannot be written: Not a directory"),
    "deviations-broken": (USAGE, "is not TOML"),
    "deviations-missing": (USAGE, "cannot be read: No such file or directory"),
    "recipe-unknown": (USAGE, "the nearest are nam56r_h200_bf16_v1"),
    "mode-unknown": (USAGE, "'nemo_native', 'author_dp'"),
    "override-unknown": (USAGE, "the nearest are optim.lr"),
    "override-without-value": (USAGE, "has no =; write field=value"),
    "override-twice": (USAGE, "--set = 'optim.lr': is given twice"),
    "override-of-another-type": (USAGE, "depth"),
    "deprecated": (USAGE, "or acknowledge nam52_h200_dense_pinned_v1"),
    "nodes-without-rendezvous": (USAGE, "rendezvous = None: is missing for 2 nodes"),
    "emit-not-offered": (USAGE, "not offered: bad does not offer preset, launch"),
    "emit-broken": (BROKEN, "which is not a Recipe"),
    "id-unknown": (USAGE, "the nearest are TOPO-02"),
    "profile-of-promises": (
        USAGE,
        "names promises of the suite itself, which no stack is asked; rankproof explain GATE",
    ),
    "prefix-unknown": (USAGE, "--only = 'NOPE': selects no contract"),
    "run-missing": (USAGE, "cannot be read: No such file or directory"),
    "run-is-an-empty-folder": (USAGE, "cannot be read: No such file or directory"),
    "run-is-not-text": (USAGE, "is not text"),
    "run-is-something-else": (USAGE, "line 1 = '[[deviation': is not JSON"),
    "report-cut": (USAGE, "ends without a footer: it was cut off"),
    "replay-unfinished": (USAGE, "holds a run that did not finish"),
    "report-planless": (USAGE, "is not header, plan, results, footer"),
    "day-unknown": (USAGE, "--as-of = 'yesterday': is not a date"),
    "form-unknown": (USAGE, "'pdf'"),
}

DEVIATION = Deviation(
    id="TOPO-02",
    case="pp*",
    reason="the mesh is rebuilt",
    issue="#7",
    owner="mesh",
    expires="2026-12-31",
    says="dp is #",
)
CANNED = Run(
    header=Header(
        schema=SCHEMA, suite="0.1.0", revision="0123456789ab", profile="TOPO-02,ARGV-02,PREC-04,PAT-08",
        subject=Subject(name="mine", version="3", origin="my.stack:Mine", offers=frozenset({"topology", "launch"}),
                        layouts=frozenset({"borrowed"}), labels={"topology": "shimmed: gloo"}),
        assistants=(), started="2026-06-15T12:00:00+00:00", command=("rankproof", "check"), python="3.11.7",
        platform="Linux-x86_64",
    ),
    plan=Plan(
        items=(Item(id="TOPO-02", case="pp2"), Item(id="TOPO-02", case="pp4"), Item(id="TOPO-02a", case="tp|2"),
               Item(id="ARGV-02", case="native"), Item(id="PAT-08", case="pp2"), Item(id="PREC-04"),
               Item(id="PAT-01", case="nam52")),
        outside=("GATE-01", "GATE-06d", "BLK-01", "TOPO-07[borrowed-pp2-tp2-on-8]"),
        promises={
            "TOPO-02": Statement(promise="DP is what the other axes leave.", source="bringup", asks=("topology",)),
            "TOPO-02a": Statement(promise="The same | borrowed.", source="bringup", asks=("topology",)),
            "ARGV-02": Statement(promise="Every flag exists.", source="naming", asks=("launch", "read_argv")),
            "PAT-08": Statement(promise="Cuts concatenate.", source="bringup", asks=("stages",)),
            "PREC-04": Statement(promise="FP8 state survives.", source="the law; no check yet"),
            "PAT-01": Statement(promise="Layer i is pattern[i mod len].", source="naming", asks=("blocks",)),
        },
    ),
    results=(
        Result(id="TOPO-02", case="pp2", outcome="violated", words="dp is 4, expected 2", seconds=0.25, rank=5,
               answered={"topology": "mine 3 (shimmed: gloo)"}),
        Result(id="TOPO-02", case="pp4", outcome="violated", words="dp is 8, expected 2"),
        Result(id="TOPO-02a", case="tp|2", outcome="violated", words="<dp> is 4 & 'odd'\nsecond line | with a bar"),
        Result(id="ARGV-02", case="native", outcome="not run", words="nobody answers read_argv: name a party --with"),
        Result(id="PAT-08", case="pp2", outcome="broken", words="mine raised KeyError on stages at my/stack.py:7: 3"),
        Result(id="PREC-04", outcome="untested", words="needs a GPU"),
        Result(id="PAT-01", case="nam52", outcome="holds", seconds=0.5),
    ),
    deviations=(DEVIATION,),
    unclaimed=(Unclaimed(question="render", evidence="PAT-11[drawn-11] holds"),),
)  # fmt: skip
GONE = replace(  # conformant by its deviation, of a stack that exists nowhere
    CANNED,
    plan=replace(CANNED.plan, items=CANNED.plan.items[:2]),
    results=CANNED.results[:2],
    header=replace(CANNED.header, subject=replace(CANNED.header.subject, origin="gone.stack:Gone", offers=frozenset())),
)


def _text(run: Run) -> str:
    return record.write(run, today().replace(year=2026, month=6, day=15))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Done]:
    canned = _text(CANNED)
    files = {
        "d.toml": "", "none.toml": "", "broken.toml": "[[deviation\n", "empty/.keep": "", "canned.jsonl": canned,
        "gone.jsonl": _text(GONE), "soon.jsonl": record.sealed_anew(canned.replace("2026-12-31", "soon")),
        "cut.jsonl": "".join(canned.splitlines(keepends=True)[:-1]),
        "unfinished/run.jsonl.part": "".join(canned.splitlines(keepends=True)[:4]) + '{"result":{"id":"TOPO',
        "planless/run.jsonl.part": canned.splitlines(keepends=True)[0],
    }  # fmt: skip
    return side_by_side(RUNS, folder, _=files)


def test_the_installed_command_runs(tmp_path: Path) -> None:
    done = subprocess.run([RANKPROOF, "--version"], cwd=tmp_path, env=environment(), capture_output=True, text=True,
                          check=True)  # fmt: skip
    said = r"rankproof \d+\.\d+\.\d+, revision \S+, law 20\d\d\.\d\d\S*, torch \S.*, Python 3\.\d+\.\d+\n"
    assert re.fullmatch(said, done.stdout)


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_ends_in_one_clear_error(name: str, runs: dict[str, Done], folder: Path) -> None:
    code, words = BAD_INPUT[name]
    done = runs[name]
    reported = code == UNREACHABLE  # a stack that is not loaded leaves a report as well
    assert (done.returncode, done.stdout[: 8 * reported]) == (code, "report: " * reported), done.stderr
    assert bool(done.stdout) == reported
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    if done.stderr.startswith("rankproof: "):
        assert len(done.stderr.splitlines()) == 1
    assert (folder / name / "out").exists() == reported, "something was written"


def test_check_writes_its_record_and_every_form_of_the_report(runs: dict[str, Done], folder: Path) -> None:
    assert runs["check"].returncode == EXIT_CODES["violated"]
    out = folder / "check/out"
    assert {path.name for path in out.iterdir()} == {
        "run.jsonl", "junit.xml", "summary.md", "report.html", "verdict.json", "annotations.txt", "results.sarif",
    }  # fmt: skip
    run, _ = record.load(out)
    judged = verdict(run, today())
    assert runs["check"].stdout.endswith(report.render(run, judged, "terminal"))
    assert (out / "summary.md").read_text() == report.render(run, judged, "markdown")
    assert run.header.subject.origin == f"{BAD}:ForgetsPipeline"


def test_with_form_only_that_form_is_printed_and_a_stacks_output_goes_to_a_log(
    runs: dict[str, Done], folder: Path
) -> None:
    assert json.loads(runs["check-json"].stdout)["word"] == "conformant"
    assert runs["check-json"].stderr == ""
    assert "loading weights" in (folder / "check-json/out/output.log").read_text()
    ElementTree.fromstring(runs["check-junit"].stdout.encode())


@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_run_is_reported_in_every_form(
    form: Form, runs: dict[str, Done], snapshot: SnapshotAssertion
) -> None:
    done = runs[f"report-{form}"]
    assert done.returncode == EXIT_CODES["violated"]
    assert done.stderr == ""
    assert re.sub(r"(<(style|script)\b[^>]*>).*?(</\2>)", r"\1\3", done.stdout, flags=re.DOTALL) == snapshot


def test_items_outside_the_profile_are_counted_by_family_and_listed_if_asked(runs: dict[str, Done]) -> None:
    assert "  GATE 2, BLK 1, TOPO 1 (--verbose lists them)" in runs["report-terminal"].stdout
    assert "GATE-06d" not in runs["report-terminal"].stdout
    assert "  GATE-01 GATE-06d BLK-01 TOPO-07[borrowed-pp2-tp2-on-8]" in runs["report-verbose"].stdout
    assert "GATE-06d" in runs["report-markdown"].stdout
    assert "GATE-06d" in runs["report-html"].stdout


def test_an_unfinished_run_is_reported_as_far_as_it_came_and_is_incomplete(runs: dict[str, Done]) -> None:
    cut = "the run did not finish: 1 of 7 planned items have a result"
    done, part = runs["report-unfinished"], runs["report-part"]
    assert (done.returncode, part.returncode) == (EXIT_CODES["incomplete"], EXIT_CODES["incomplete"]), done.stderr
    assert cut in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1].startswith("INCOMPLETE: mine 3")
    body = json.loads(part.stdout)
    assert (body["word"], body["exit_code"], body["counts"]["not run"]) == ("incomplete", 3, 6)
    assert body["faults"][0]["words"].startswith(cut)


def test_html_and_junit_escape_what_a_stack_says(runs: dict[str, Done]) -> None:
    assert "&lt;dp&gt; is 4 &amp; " in runs["report-html"].stdout
    suites = ElementTree.fromstring(runs["report-junit"].stdout.encode())
    assert "<dp> is 4 & 'odd'" in [failure.get("message") for failure in suites.iter("failure")]


def test_replay_needs_no_stack_and_uses_the_day_of_the_run(runs: dict[str, Done]) -> None:
    assert runs["replay-gone"].returncode == 0, runs["replay-gone"].stderr
    assert "CONFORMANT: mine 3" in runs["replay-gone"].stdout
    assert runs["replay"].returncode == EXIT_CODES["violated"]
    assert "deviation TOPO-02[pp*] expired on 2026-12-31" in runs["replay-expired"].stdout
    assert "2 items: TOPO-02[pp2, pp4]" in runs["replay-without"].stdout
    assert "Deviates, as declared" not in runs["replay-without"].stdout
    assert "Deviates, as declared: 2" in runs["replay"].stdout


def test_replay_reports_each_difference_from_the_record(runs: dict[str, Done]) -> None:
    done = runs["replay-late"]
    assert done.returncode == EXIT_CODES["violated"]
    assert "the record said conformant on 2026-06-15" in done.stdout
    assert "judged as of 2027-01-01 it is violated" in done.stdout


def test_list_shows_statement_tier_cases_and_untested_contracts(runs: dict[str, Done]) -> None:
    lines = runs["list"].stdout.splitlines()
    assert runs["list"].returncode == 0
    [topo] = [line for line in lines if line.startswith("TOPO-02 ")]
    assert topo.split()[1] == "unit"
    assert "[6 cases]" in topo
    assert any(line.strip() == "TOPO-02[pp13-on-52]" for line in lines)
    [prec] = [line for line in lines if line.startswith("PREC-04b ")]
    assert "gpu" in prec.split()
    assert "[untested: " in prec


def test_explain_prints_statement_reasons_cases_mutants_and_how_to_see_it_fail(runs: dict[str, Done]) -> None:
    said = runs["explain"].stdout
    for words in ("TOPO-02\n", "world size divided by every other axis", "asks       topology",
                  "check      contracts/law/topology/", "    contracts/law/topology/mesh_sizes_bugs.py:",
                  "reference  topology: contracts/stacks/reference/stack.py:", "pp13-on-52: ",
                  "(docs/sources.md#bringup): effective DP under PP", "time       ", "6 cases\n",
                  " mutants that it must catch",
                  "forgets_pipeline (DPS-01)", "rankproof selftest --only TOPO-02"):  # fmt: skip
        assert words in said
    assert "Not judged yet: " in runs["explain-untested"].stdout
    said = runs["explain-promise"].stdout
    assert "held by\n  tests_unit/gate/test_tolerances.py::test_a_difference_of_rounding_size_passes\n" in said
    assert "not held: that the verdict on the reference is the same" in said


STUB = """#!/bin/sh
for word in "$0" "$@"; do printf '%s\\0' "$word"; done > words
env -0 > variables
"""


def test_an_emitted_command_is_unchanged_by_the_shell(runs: dict[str, Done], folder: Path) -> None:
    launch = json.loads(runs["emit-json"].stdout)
    assert AWKWARD in " ".join(launch["command"]), "this test needs a word that must be quoted"
    stubs = folder / "stubs"
    stubs.mkdir()
    stub = stubs / launch["command"][0]
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    inherited = dict.fromkeys(launch["unset"], "inherited")
    subprocess.run(["sh", "-c", runs["emit"].stdout], cwd=folder, check=True, timeout=30,
                   env={**os.environ, **inherited, "PATH": f"{stubs}:{os.environ['PATH']}"})  # fmt: skip
    words = (folder / "words").read_bytes().decode().split("\0")[:-1]
    assert words[1:] == launch["command"][1:]
    variables = dict(pair.split("=", 1) for pair in (folder / "variables").read_bytes().decode().split("\0")[:-1])
    assert {name: variables.get(name) for name in launch["env"]} == launch["env"]
    assert not set(launch["unset"]) & variables.keys()


def test_emitted_json_holds_the_same_launch(runs: dict[str, Done]) -> None:
    launch = json.loads(runs["emit-json"].stdout)
    assert launch["command"] == [*launch["torchrun"], *launch["script"], *launch["argv"]]
    assert launch["shell"] == runs["emit"].stdout.splitlines()[-1]
    for given_up in launch["gives_up"]:
        assert f"# this lane gives up: {given_up}" in runs["emit"].stdout


def test_emit_overrides_single_fields_of_the_recipe(runs: dict[str, Done]) -> None:
    argv = json.loads(runs["emit-set"].stdout)["argv"]
    assert argv[argv.index("--lr") + 1] == "0.001"
    assert argv[argv.index("--seed") + 1] == "7"


def test_selftest_prints_the_kill_matrix_and_writes_it(runs: dict[str, Done], folder: Path) -> None:
    done = runs["selftest"]
    assert done.returncode == 0, done.stdout[-400:]
    assert "Kill matrix" in done.stdout
    *_, planted, two, three, _ = done.stdout.splitlines()
    assert planted.startswith("- Bugs planted by hand: ")
    assert two.startswith("pairs of features: ")
    assert three.startswith("three axes of parallelism: ")
    assert f"{two}\n{three}\n" in (folder / "selftest/kills/pairs.txt").read_text()
    kills = json.loads((folder / "selftest/kills/kills.json").read_text())
    assert kills["unguarded"] == []
    assert {kill["fate"] for kill in kills["kills"]} == {"killed"}
    assert f"{len(kills['kills'])} of {len(kills['kills'])} mutants killed with their declared words" in done.stdout


def test_help_names_every_command(runs: dict[str, Done]) -> None:
    for command in ("check", "list", "explain", "emit", "report", "replay", "selftest"):
        assert f"  {command} " in runs["help"].stdout


def test_the_published_schema_of_a_record_is_that_of_the_types() -> None:
    published = SCHEMA_FILE.read_text(encoding="utf-8")
    assert published == record.schema_text(), "python -m contracts.court.record docs/schema/run-1.json"


def test_every_line_of_a_real_record_matches_the_published_schema(runs: dict[str, Done], folder: Path) -> None:
    valid = Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    real = [folder / "check/out/run.jsonl", folder / "replay/canned.jsonl"]
    seen = set()
    for line in "".join(path.read_text() for path in real).splitlines():
        entry = json.loads(line)
        valid.validate(entry)
        seen |= entry.keys()
    assert seen == {"header", "plan", "deviation", "result", "unclaimed", "footer"}
    assert not valid.is_valid({"result": {"id": "X-01", "outcome": "fine"}})
    assert not valid.is_valid({"verdict": {}})


def test_a_record_with_a_malformed_date_is_refused(runs: dict[str, Done]) -> None:
    done = runs["report-no-date"]
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "deviation TOPO-02.expires = 'soon': is not a date" in done.stderr


def test_the_verdict_of_a_canned_run_equals_the_one_worked_out_by_hand() -> None:
    judged = verdict(CANNED, today().replace(year=2026, month=6, day=15))
    assert judged.word == "violated"
    assert dict(judged.counts) == {
        "holds": 1, "violated": 1, "deviates": 2, "not offered": 0, "untested": 1, "not run": 1, "broken": 1,
    }  # fmt: skip
    assert judged.faults == ()
    late = verdict(CANNED, today().replace(year=2027, month=1, day=1))
    words = "deviation TOPO-02[pp*] expired on 2026-12-31; fix the fault, or give a new date and its reason"
    assert late.faults == (Fault(kind="deviation", words=words),)
