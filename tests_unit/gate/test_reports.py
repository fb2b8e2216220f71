"""Causes, and what the forms for people and for CI services make of them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from contracts.court.causes import Cause, apart, causes, skeleton
from contracts.court.markdown_report import LIMIT
from contracts.court.report import FILES, files, render
from contracts.court.telling import place, rerun
from contracts.court.verdict import verdict
from contracts.spec.records import Form, Run, Verdict
from tests_unit.gate import _reported
from tests_unit.gate._reported import GREEN, ITEM, RED, colourful, sick

pytestmark = pytest.mark.unit

DAY = datetime.date(2026, 11, 22)
SCREEN_AND_A_HALF = 75  # lines


def _judged(run: Run) -> Verdict:
    return verdict(run, DAY)


def _drawn(run: Run, form: Form, *, verbose: bool = False, width: int = 120) -> str:
    return render(run, _judged(run), form, verbose, width)


def _causes(run: Run) -> list[Cause]:
    return causes(run, _judged(run).results)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dp is 4, expected 2", "dp is 8, expected 2"),
        ("error 1.7e-03 over 1e-12 (float64)", "error 2 over 1e-06 (float32)"),
        ("layer 'ablock' is late", "layer 'eblock' is late"),
        ("tokens (1, 2, 3) are dropped", "tokens (1, 2) are dropped"),
        ("AEME at depth 52 has 48 blocks", "AMR at depth 5 has 4 blocks"),
        ("<Thing object at 0x7f01ab>", "<Thing object at 0x55ee>"),
        ("gradient a.wq differs: L2 error 1 over 2", "gradient b.norm differs: row error inf over 2; and 3 more"),
        (
            "gradient a.wq differs: L2 error 1 over 2",
            "gradient b.norm differs: row error 2 over 2; gradients made before the first, which agree: 7",
        ),
    ],
)
def test_words_that_differ_in_values_are_one_cause(one: str, other: str) -> None:
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("fork raised KeyError on blocks at fork.py:27: 3", "fork raised KeyError on blocks at fork.py:99: 3"),
        ("fork does not offer launch", "fork does not offer samples"),
        ("the stack's loss is late", "the stack's norm is late"),
        ("gradient w differs: 1", "weight w differs: 1"),
    ],
)
def test_words_that_differ_in_what_they_say_are_two(one: str, other: str) -> None:
    assert skeleton(one) != skeleton(other)


def test_causes_of_a_run_are_worked_out_by_hand() -> None:
    told = [(cause.outcome, cause.ids, len(cause.results)) for cause in _causes(RED)]
    assert told == [
        ("violated", ("TOPO-02",), 3),
        ("violated", ("PAT-01",), 2),
        ("violated", ("PAR-01",), 2),
        ("violated", ("PAT-01",), 1),
        ("broken", ("MOE-01",), 2),
        ("broken", ("MOE-01",), 1),
        ("not run", ("RCPT-01",), 2),
        ("not offered", ("PAT-01",), 1),
    ]
    assert sum(len(cause.results) for cause in _causes(RED)) == len(RED.results) - 1


def test_the_guilty_tensors_are_read_from_the_words() -> None:
    found = [(each.tensor, each.layer, each.kind, each.error) for each in apart(RED.results)]
    assert found == [
        ("layers.3.mixer.wq.weight", 3, "mixer.wq.weight", 1.7e-3),
        ("layers.4.mixer.wq.weight", 4, "mixer.wq.weight", 0.3),
        ("layers.3.mixer.A_log", 3, "mixer.A_log", 2e-5),
    ]


RUNS: dict[str, Callable[[], Run]] = {
    "green": lambda: GREEN, "red": lambda: RED, "sick": lambda: sick(2257), "colourful": lambda: colourful(500),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_verdict_fits_a_screen_and_a_half_and_ends_with_the_verdict(name: str, width: int) -> None:
    run = RUNS[name]()
    lines = _drawn(run, "terminal", width=width).splitlines()
    assert len(lines) <= SCREEN_AND_A_HALF
    assert lines[-1].startswith(f"{_judged(run).word.upper()}: fork 7")
    # A command is never broken: it is there to be copied. The verdict is one line.
    longest = [line for line in lines[:-1] if "rankproof " not in line]
    assert max(map(len, longest)) <= width


def test_a_terminal_lists_every_item_where_it_is_asked_to() -> None:
    short, long = _drawn(sick(50), "terminal"), _drawn(sick(50), "terminal", verbose=True)
    assert "case-49" not in short
    assert all(f"case-{number}" in long for number in range(50))
    assert "PAT-01  one, two, three" in _drawn(GREEN, "terminal", verbose=True)
    assert "Holds: 15 (PAT 3, TOPO 3, PAR 3, MOE 3, RCPT 3)" in _drawn(GREEN, "terminal")


def test_a_command_to_run_again_keeps_who_assisted() -> None:
    assert (
        rerun(RED, next(each for each in RED.results if each.item == ITEM))
        == "rankproof check --stack fork.gate:Stack --with none --profile 'TOPO-02[pp4]'"
    )
    lacking = _reported.result(
        "PAT-10", "nam52", "not run", "nobody answers read_pattern: make it and ask it by --with megatron"
    )
    assert rerun(RED, lacking).endswith("--with none --with megatron --profile 'PAT-10[nam52]'")


@pytest.mark.parametrize(("made", "number"), [(sick, 20_000), (colourful, 2000)], ids=["sick", "colourful"])
def test_a_summary_is_never_larger_than_github_takes(made: Callable[[int], Run], number: int) -> None:
    text = _drawn(made(number), "markdown")
    assert len(text.encode()) <= LIMIT
    assert "2000 violated" in text or "20000 not run" in text


def test_a_summary_says_what_it_leaves_out() -> None:
    last = _drawn(colourful(2000), "markdown").splitlines()[-1]
    assert last.startswith("… ")
    assert last.endswith("more, left out here; `report.html` has all of it.")
    assert "left out" not in _drawn(RED, "markdown")


def test_json_has_the_causes_and_every_result() -> None:
    told = json.loads(_drawn(RED, "json"))
    assert [len(cause["items"]) for cause in told["causes"]] == [3, 2, 2, 1, 2, 1, 2, 1]
    assert told["causes"][0]["items"] == ["TOPO-02[pp2]", "TOPO-02[pp4]", "TOPO-02[pp8]"]
    assert told["causes"][0]["rerun"].endswith("--profile 'TOPO-02[pp2]'")
    assert len(told["results"]) == len(RED.results)


def test_a_place_is_where_the_stack_answered_or_raised() -> None:
    by_item = {str(each.item): each for each in RED.results}
    assert place(RED, by_item["TOPO-02[pp4]"]) == ("fork/gate.py", 12)
    assert place(RED, by_item["MOE-01[k2]"]) == ("/nowhere/fork/moe.py", 27)
    assert place(RED, by_item["RCPT-01[one]"]) is None


def test_annotations_stand_at_the_code_that_answered() -> None:
    first, *lines = _drawn(RED, "annotations").splitlines()
    assert first.startswith("::error title=rankproof::VIOLATED: fork 7, profile launch,numeric (")
    [topology] = [line for line in lines if "TOPO-02" in line]
    start = "::error file=fork/gate.py,line=12,title=TOPO-02[pp2] and 2 more%3A violated::got: dp is 2, expected 2%0A"
    assert topology.startswith(start)
    assert "%0Aitems: TOPO-02[pp2, pp4, pp8]" in topology
    assert [line.partition(" ")[0] for line in lines] == ["::error"] * 6 + ["::warning"]
    assert _drawn(GREEN, "annotations").startswith("::notice title=rankproof::CONFORMANT: ")
    assert len(_drawn(colourful(500), "annotations").splitlines()) <= 10  # GitHub shows ten of a kind


def test_junit_counts_and_places_what_it_holds() -> None:
    suites = ElementTree.fromstring(_drawn(RED, "junit"))
    [suite] = suites
    for kind, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"), ("tests", "testcase")):
        assert int(suite.attrib[kind]) == int(suites.attrib[kind]) == len(list(suite.iter(element))), kind
    cases = {case.attrib["name"]: case.attrib for case in suite.iter("testcase")}
    assert (cases["PAT-01[names]"]["file"], cases["PAT-01[names]"]["line"]) == ("fork/gate.py", "41")
    assert cases["TOPO-02[pp2]"]["time"] == "0.25"
    assert "file" not in cases["RCPT-01[three]"]


_LEVELS = {"none", "note", "warning", "error"}


def test_sarif_has_what_its_schema_and_code_scanning_demand() -> None:
    log = json.loads(_drawn(RED, "sarif"))
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    assert log["$schema"].endswith("sarif-2.1.0.json")
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "rankproof"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert [each["executionSuccessful"] for each in run["invocations"]] == [True]
    assert run["invocations"][0]["exitCode"] == 1
    seen = set()
    for result in run["results"]:
        assert result["ruleId"] == ids[result["ruleIndex"]]
        assert result["level"] in _LEVELS
        assert result["message"]["text"]
        [location] = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"]
        assert physical["region"]["startLine"] >= 1
        seen.add(result["partialFingerprints"]["rankproofCause/v1"])
    assert len(seen) == len(run["results"]) == 7
    uris = [each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in run["results"]]
    assert uris[0] == "fork/gate.py"
    assert uris[-1] == "run.jsonl"  # nobody answered


def test_a_value_changes_no_fingerprint_and_another_cause_has_another() -> None:
    def prints(run: Run) -> list[str]:
        [told] = json.loads(_drawn(run, "sarif"))["runs"]
        return [each["partialFingerprints"]["rankproofCause/v1"] for each in told["results"]]

    assert prints(sick(3)) == prints(sick(3))
    assert prints(sick(10)) == prints(sick(20))
    assert not set(prints(sick(10))) & set(prints(RED))


def test_the_files_of_a_report_are_its_forms() -> None:
    drawn = files(RED, _judged(RED))
    assert {*drawn} == {*FILES}
    assert all(text == _drawn(RED, FILES[name]) for name, text in drawn.items())
