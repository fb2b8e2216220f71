"""Causes, and what the forms for people and for CI services make of them."""

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contracts.court.causes import HEADINGS, Cause, apart, apart_by_rank, by_outcome, causes, skeleton
from contracts.court.markdown_report import LIMIT
from contracts.court.report import FILES, files, render
from contracts.court.sources import DOCUMENTS
from contracts.court.verdict import verdict
from contracts.court.wording import (
    answered_by,
    by_id,
    counted,
    details,
    families,
    headline,
    items,
    kill_line,
    law_lines,
    place,
    ranks_words,
    rerun,
)
from contracts.spec import codec
from contracts.spec.records import Form, Item, Kill, OnRanks, Outcome, Result, Run, Verdict, Violation
from tests_unit._parties.law import LAW
from tests_unit.gate._reported import GREEN, ITEM, RED, colourful, sick
from tests_unit.gate.test_deviations import ended, run

DAY = datetime.date(2026, 11, 22)
SCREEN_AND_A_HALF = 75  # lines


def _judged(run: Run) -> Verdict:
    return verdict(run, DAY)


def _drawn(run: Run, form: Form, *, verbose: bool = False, width: int = 120) -> str:
    return render(run, _judged(run), form, verbose, width)


def _causes(run: Run) -> list[Cause]:
    return causes(run, _judged(run).results)


ALIKE = [
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
]
UNLIKE = [
    ("fork raised KeyError on blocks at fork.py:27: 3", "fork raised KeyError on blocks at fork.py:99: 3"),
    ("fork does not offer launch", "fork does not offer samples"),
    ("the stack's loss is late", "the stack's norm is late"),
    ("gradient w differs: 1", "weight w differs: 1"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE + UNLIKE)
def test_violations_are_one_cause_only_if_they_differ_in_values_alone(one: str, other: str) -> None:
    assert (skeleton(one) == skeleton(other)) == ((one, other) in ALIKE)


def test_causes_of_a_run_equal_those_worked_out_by_hand() -> None:
    assert [(cause.outcome, cause.ids, len(cause.results)) for cause in _causes(RED)] == [
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
    assert [cause.words for cause in _causes(RED)][:2] == ["dp is 2, expected 2", RED.results[3].words]


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        ("1, 2, 3 and 4,5", "# and #"),
        ("at fork.py:27: +3 of -1.5e-03 over inf and -nan", "at fork.py:27: # of # over # and #"),
        ("a differs: L2 error 1 over 2; a differs: row error 3 over 4", "a differs: error # over #"),
        ("a.b differs: 1; c.d has shape (1, 2); e.f is not finite", "# differs: #; # has shape (#); # is not finite"),
        ("layers.1.wq is late", "layers.#.wq is late"),
        ("`x` \"y\" 'z' isn't", "# # # isn't"),
        ("x; and 3 more", "x"),
        ("y; gradients made before the first, which agree: 7", "y"),
    ],
)
def test_the_shape_of_a_message_leaves_out_its_values(words: str, shape: str) -> None:
    assert skeleton(words) == shape


def test_violations_that_differ_only_far_from_their_beginning_are_one_cause() -> None:
    begins = "word " * 799 + "last"
    assert len(begins) == 3999
    assert skeleton(f"{begins}b") != skeleton(f"{begins}c")
    assert skeleton(f"{begins}bb") == skeleton(f"{begins}bc") == f"{begins}b"


def _said(outcome: Outcome, words: str, id: str = "PAT-01", **more: object) -> Result:
    return Result(id=id, case="one", outcome=outcome, words=words, **more)  # type: ignore[arg-type]


def test_only_violations_are_grouped_by_question_too() -> None:
    """A violation on two questions is two causes; whatever was not judged is one, whoever was asked."""
    for outcome in HEADINGS:
        pair = (_said(outcome, "w 1", answered={"b": "", "a": ""}), _said(outcome, "w 2", "TOPO-02"))
        results = [codec.loads(Result, codec.dumps(each)) for each in (*pair, _said(outcome, "w 3", "X-01"))]
        found = causes(RED, results)  # as they are read from a record
        questions = [(each.questions, len(each.results)) for each in found]
        if outcome == "holds":
            assert found == []
        elif outcome in ("violated", "deviates"):
            assert questions == [(("a", "b"), 1), (("topology",), 1), ((), 1)]
        else:
            assert questions == [((), 3)]


def test_causes_are_listed_from_the_most_items_to_the_fewest() -> None:
    order = [each for each in HEADINGS if each != "holds"]
    results = [_said(each, words) for each in reversed(order) for words in ("small", "large", "large")]
    found = causes(RED, results)
    assert [(each.outcome, each.words) for each in found] == [(o, w) for o in order for w in ("large", "small")]
    assert {outcome: len(group) for outcome, group in by_outcome(found).items()} == dict.fromkeys(order, 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("layer.12.up differs: L2 error inf over 1", [("layer.12.up", float("inf"), 12, "up")]),
        ("wq differs: row error 2.5e-01 over 1; x", [("wq", 0.25, None, "wq")]),
        ("a.layers.12.up differs: largest error 3 over 1", [("a.layers.12.up", 3.0, 12, "a.up")]),
        ("a.up differs: int64, expected int32; b differs: 1", [("a.up", None, None, "a.up")]),
        ("nothing is off", []),
    ],
)
def test_a_tensor_that_differs_is_read_with_its_error(words: str, told: list[tuple[object, ...]]) -> None:
    found = [(each.tensor, each.error, each.layer, each.kind) for each in apart([_said("violated", words)])]
    assert found == told


def test_a_tensor_is_named_once_for_each_rank_that_found_it() -> None:
    off = [Violation(words=f"{name} differs: L2 error {error} over 1") for name, error in (("a", 1), ("b", 2))]
    told = (OnRanks(ranks=(0, 2), violations=(off[0],)), OnRanks(ranks=(1,), violations=(*off, Violation(words="dp"))))
    found = [(rank, each.tensor, each.error) for rank, each in apart_by_rank(_said("violated", "x", on_ranks=told))]
    assert found == [(0, "a", 1.0), (2, "a", 1.0), (1, "a", 1.0), (1, "b", 2.0)]


def test_a_headline_leaves_out_outcomes_with_no_item() -> None:
    assert headline(_judged(GREEN)) == "CONFORMANT: fork 7, profile launch,numeric (15 holds)"
    red = _judged(RED)
    assert headline(red) == (
        "VIOLATED: fork 7, profile launch,numeric (1 holds, 8 violated, 1 not offered, 2 not run, 3 broken)"
    )
    one = replace(red, faults=(), counts=dict.fromkeys(red.counts, 0), unfit=("A-01",))
    assert headline(one) == "VIOLATED: fork 7, profile launch,numeric (no result); 1 contract is unfit: A-01"
    assert headline(replace(one, unfit=("A-01", "A-02"))).endswith("; 2 contracts are unfit: A-01, A-02")
    late = _judged(replace(GREEN, results=GREEN.results[1:] * 2))
    assert f", {len(late.faults)} faults of the run)" in headline(late)


def test_a_count_uses_the_singular_for_one() -> None:
    assert [counted(n, "item") for n in (0, 1, 2)] == ["0 items", "1 item", "2 items"]
    assert [counted(n, "entry", "entries") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert families(["PAT-01", "PAT-02[a]", "TOPO-01", "PAT-03"]) == "PAT 3, TOPO 1"
    killed = Kill(mutant="M", of="PAT-01", case="a", fate="killed", words="")
    assert kill_line(replace(RED, kills=(killed,))) == "Self-test of the suite: 1 mutant (1 killed)"
    several = (killed, replace(killed, fate="void"), replace(killed, fate="crashed"), killed)
    assert kill_line(replace(RED, kills=several)) == "Self-test of the suite: 4 mutants (1 crashed, 2 killed, 1 void)"


def test_items_of_a_cause_are_grouped_and_those_over_the_limit_counted() -> None:
    results = (*RED.results[:3], Result(id="TOPO-03", outcome="violated"), RED.results[3])
    cause = Cause(outcome="violated", questions=(), skeleton="", results=results)
    assert items(cause) == items(cause, 5) == items(cause, 6) == "TOPO-02[pp2, pp4, pp8] TOPO-03 PAT-01[nam56r]"
    assert items(cause, 4) == "TOPO-02[pp2, pp4, pp8] TOPO-03 and 1 more"
    assert items(cause, 2) == "TOPO-02[pp2, pp4] and 3 more"
    assert [(id, len(group)) for id, group in by_id([*results, results[0]])] == [
        ("TOPO-02", 3), ("TOPO-03", 1), ("PAT-01", 1), ("TOPO-02", 1),
    ]  # fmt: skip


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
    assert max(len(line) for line in lines[:-1] if "rankproof " not in line) <= width


def test_the_terminal_report_lists_every_item_if_asked() -> None:
    short, long = _drawn(sick(50), "terminal"), _drawn(sick(50), "terminal", verbose=True)
    assert "case-49" not in short
    assert all(f"case-{number}" in long for number in range(50))
    assert "PAT-01  one, two, three" in _drawn(GREEN, "terminal", verbose=True)
    assert "Holds: 15 (PAT 3, TOPO 3, PAR 3, MOE 3, RCPT 3)" in _drawn(GREEN, "terminal")


def test_a_rerun_command_keeps_the_assistants() -> None:
    assert (
        rerun(RED, next(each for each in RED.results if each.item == ITEM))
        == "rankproof check --stack fork.gate:Stack --with none --profile 'TOPO-02[pp4]'"
    )


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ((), ""),
        (("--with", "megatron", "--jobs", "2", "--with=none"), "--with megatron --with none "),
        (("--deviations", "d.toml", "--deadline=5"), "--deviations d.toml --deadline 5 "),
        (("pytest", "--rankproof-with=none", "--rankproof-deadline", "3"), "--with none --deadline 3 "),
        (("--profile", "x", "--report", "--with"), ""),
        (("--with=", "--deadline", "2"), "--with '' --deadline 2 "),
    ],
)
def test_a_rerun_command_keeps_device_release_and_deviations(command: tuple[str, ...], kept: str) -> None:
    again = replace(RED, header=replace(RED.header, command=command))
    assert rerun(again, RED.results[0]) == (f"rankproof check --stack fork.gate:Stack {kept}--profile 'TOPO-02[pp2]'")


@pytest.mark.parametrize(
    ("outcome", "words", "asked"),
    [
        ("not run", "make it and ask it by --with megatron", True),
        ("not run", "make it and ask it by --with none", False),  # it was asked already
        ("not run", "ask it by --with megatron, some day", False),
        ("violated", "make it and ask it by --with megatron", False),
        ("broken", "make it and ask it by --with megatron", False),
    ],
)
def test_a_rerun_command_adds_a_stack_that_answers_the_missing_question(
    outcome: Outcome, words: str, asked: bool
) -> None:
    again = rerun(RED, _said(outcome, words))
    assert again.endswith(f"--with none {'--with megatron ' * asked}--profile 'PAT-01[one]'")


def test_a_rerun_command_has_the_number_of_ranks() -> None:
    of_a_gpu = next(each for each in LAW.contracts.values() if each.tier == "gpu")
    for id, case, number in (
        ("PREF-03", "16-mib-on-8", 8), ("PREF-03", "no such case", 0), ("PAT-01", "nam56r", 0), ("X-01", "", 0),
        (of_a_gpu.id, next(iter(of_a_gpu.cases)), 0),
    ):  # fmt: skip
        assert ranks_words(Item(id=id, case=case)) == (["--ranks", str(number)] if number else [])
    fewest = {
        int(ranks_words(Item(id=each.id, case=case))[1])
        for each in LAW.contracts.values() if each.tier == "dist" for case in each.asked
    }  # fmt: skip
    assert min(fewest) == 2
    assert ranks_words(Item(id="X-01", case=""), 4) == ["--ranks", "4"], "of a contract that is not read here"


def test_the_details_of_a_result_have_statement_source_answers_and_rerun_command() -> None:
    assert dict(details(RED, RED.results[0])) == {
        "got": "dp is 2, expected 2", "first rank": "2", "contract": "DP is what the other axes leave.",
        "source": f'note "{DOCUMENTS["bringup"]}" (docs/sources.md#bringup)',
        "topology by": "fork 7 (unpatched), fork/gate.py:12",
        "rerun": rerun(RED, RED.results[0]), "explain": "rankproof explain TOPO-02",
    }  # fmt: skip
    assert dict(details(RED, replace(RED.results[0], rank=0)))["first rank"] == "0"
    assert [*dict(details(RED, _said("broken", "x", "X-01")))] == ["got", "rerun", "explain"]


def test_a_file_and_line_is_shown_only_for_the_stacks_own_answers() -> None:
    answered = {"topology": "fork 7 (shimmed)", "train": "other 7 (unpatched)", "launch": "fork 7 (unpatched)"}
    assert answered_by(RED, _said("violated", "x", answered=answered)) == [
        ("topology by", "fork 7 (shimmed), fork/gate.py:12"), ("train by", "other 7 (unpatched)"),
        ("launch by", "fork 7 (unpatched)"),
    ]  # fmt: skip


@pytest.mark.parametrize(("made", "number"), [(sick, 20_000), (colourful, 2000)], ids=["sick", "colourful"])
def test_a_step_summary_fits_githubs_limit(made: Callable[[int], Run], number: int) -> None:
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


def test_a_violations_file_and_line_is_where_the_stack_answered_or_raised() -> None:
    by_item = {str(each.item): each for each in RED.results}
    assert place(RED, by_item["TOPO-02[pp4]"]) == ("fork/gate.py", 12)
    assert place(RED, by_item["MOE-01[k2]"]) == ("/nowhere/fork/moe.py", 27)
    assert place(RED, by_item["RCPT-01[one]"]) is None


def test_a_violations_file_and_line_is_that_of_the_last_question_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = _said("violated", "x", "X-01", answered={"blocks": "", "topology": "", "launch": ""})
    assert place(RED, both) == ("fork/gate.py", 12)
    asked = _said("violated", "x", "TOPO-02", answered={"blocks": ""})
    assert place(RED, asked) == ("fork/gate.py", 12), "what its contract asks comes after what was answered"
    raised = "fork raised KeyError on {} at {}:27: 3"
    monkeypatch.chdir(tmp_path)
    assert place(RED, _said("broken", raised.format("blocks", tmp_path / "fork" / "moe.py"))) == ("fork/moe.py", 27)
    assert place(RED, _said("broken", raised.format("blocks", "/nowhere/moe.py"))) == ("fork/gate.py", 41)
    assert place(RED, _said("broken", raised.format("launch", "/nowhere/moe.py"))) == ("/nowhere/moe.py", 27)
    torn = replace(RED, header=replace(RED.header, subject=replace(RED.header.subject, places={"blocks": "gate.py:x"})))
    assert place(torn, _said("violated", "x", answered={"blocks": ""})) is None


def test_annotations_are_at_the_code_that_answered() -> None:
    first, *lines = _drawn(RED, "annotations").splitlines()
    assert first.startswith("::error title=rankproof::VIOLATED: fork 7, profile launch,numeric (")
    [topology] = [line for line in lines if "TOPO-02" in line]
    start = "::error file=fork/gate.py,line=12,title=TOPO-02[pp2] and 2 more%3A violated::got: dp is 2, expected 2%0A"
    assert topology.startswith(start)
    assert "%0Aitems: TOPO-02[pp2, pp4, pp8]" in topology
    assert [line.partition(" ")[0] for line in lines] == ["::error"] * 6 + ["::warning"]
    assert _drawn(GREEN, "annotations").startswith("::notice title=rankproof::CONFORMANT: ")
    assert len(_drawn(colourful(500), "annotations").splitlines()) <= 10  # GitHub shows ten of a kind


def test_junit_has_right_counts_and_file_locations() -> None:
    suites = ElementTree.fromstring(_drawn(RED, "junit"))
    [suite] = suites
    for kind, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"), ("tests", "testcase")):
        assert int(suite.attrib[kind]) == int(suites.attrib[kind]) == len(list(suite.iter(element))), kind
    cases = {case.attrib["name"]: case.attrib for case in suite.iter("testcase")}
    assert (cases["PAT-01[names]"]["file"], cases["PAT-01[names]"]["line"]) == ("fork/gate.py", "41")
    assert cases["TOPO-02[pp2]"]["time"] == "0.25"
    assert "file" not in cases["RCPT-01[three]"]


_LEVELS = {"none", "note", "warning", "error"}


def test_sarif_satisfies_its_schema_and_code_scanning() -> None:
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


def test_a_fingerprint_depends_on_the_cause_and_not_on_values() -> None:
    def prints(run: Run) -> list[str]:
        [told] = json.loads(_drawn(run, "sarif"))["runs"]
        return [each["partialFingerprints"]["rankproofCause/v1"] for each in told["results"]]

    assert prints(sick(3)) == prints(sick(3))
    assert prints(sick(10)) == prints(sick(20))
    assert not set(prints(sick(10))) & set(prints(RED))


def test_a_report_folder_has_one_file_for_each_form() -> None:
    drawn = files(RED, _judged(RED))
    assert {*drawn} == {*FILES}
    assert all(text == _drawn(RED, FILES[name]) for name, text in drawn.items())


def _about(judged: Run, *added: str) -> Run:
    return replace(judged, plan=replace(judged.plan, law="2026.11 (0123456789ab)", added=added, gone=("PAR-09",)))


def test_changes_since_a_frozen_law_are_listed_up_to_a_limit() -> None:
    judged = _about(run(ended("PAR-01", "a", "holds"), ended("PAR-01", "b", "violated")), "PAR-01[b]")
    found = _judged(judged)
    lines = law_lines(judged, found)
    assert lines == [
        "Law 2026.11 (0123456789ab); added later, not counted: 1 (1 violated)",
        "added later, not counted: PAR-01[b] is violated: some words",
        "in it, and removed since: PAR-09",
    ]
    assert law_lines(judged, found, 1) == [lines[0], "… and 2 lines more"]
    assert law_lines(judged, found, 3) == law_lines(judged, found, 9) == lines
    assert law_lines(judged, found, 2) == [*lines[:2], "… and 1 lines more"]


def test_of_contracts_added_later_only_red_ones_are_named() -> None:
    came: tuple[Outcome, ...] = ("broken", "violated", "holds", "holds", "not run", "not offered")
    judged = _about(run(*(ended("PAR-01", f"c{n}", each) for n, each in enumerate(came))),
                   *(f"PAR-01[c{n}]" for n in range(len(came))))  # fmt: skip
    judged = replace(judged, plan=replace(judged.plan, gone=(), reworded=("PAR-01", "PAR-02")))
    assert law_lines(judged, _judged(judged)) == [
        "Law 2026.11 (0123456789ab); added later, not counted: 6 "
        "(2 holds, 1 violated, 1 not offered, 1 not run, 1 broken)",
        "added later, not counted: PAR-01[c0] is broken: some words",
        "added later, not counted: PAR-01[c1] is violated: some words",
        "reworded since: PAR-01, PAR-02",
    ]
    alone = replace(judged, plan=replace(judged.plan, added=(), reworded=()))
    lines = ["Law 2026.11 (0123456789ab); added later, not counted: 0"]
    assert law_lines(alone, _judged(alone)) == lines
    without = replace(judged, plan=replace(judged.plan, law=""))
    assert law_lines(without, _judged(without)) == []
