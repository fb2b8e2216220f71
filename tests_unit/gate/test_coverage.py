"""Coverage counts each planned case once, and holds against a stack neither its own lacks nor the device's."""

import datetime
import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from contracts.court import record
from contracts.court.coverage import Part, coverage, table
from contracts.court.verdict import verdict
from contracts.harness.cli import main
from contracts.spec import LACKS, Lack, Refused
from contracts.spec.records import Item, Result, Run
from tests_unit.gate.test_deviations import DP, ended, run, violated

TODAY = datetime.date(2026, 6, 15)


def lacking(id: str, case: str, lack: Lack | None) -> Result:
    return Result(id=id, case=case, outcome="not offered", words="it has none", lack=lack)


RESULTS = (
    ended("PAR-01", "a", "holds"), violated("PAR-01", "b", DP), lacking("PAR-01", "c", "stack"),
    lacking("PAR-01", "d", "device"), lacking("PAR-01", "e", "adapter"), lacking("PAR-01", "f", "case"),
    lacking("MOE-01", "old-record", None), ended("MOE-01", "g", "not run"), ended("MOE-01", "h", "broken"),
    ended("MOE-02", "", "untested"), ended("GATE-01", "all-hold", "holds"),
)  # fmt: skip
RUN = run(*RESULTS)


def of(judged: Run) -> dict[str, object]:
    return coverage(judged, verdict(judged, TODAY)).as_json()


def test_coverage_counts_each_case_once_and_leaves_declared_lacks_out() -> None:
    found = of(RUN)
    assert found["total"] == {
        "planned": 9, "holds": 1, "violated": 1, "deviates": 0, "stack": 1, "device": 1, "adapter": 2, "case": 1,
        "not run": 1, "broken": 1, "answered": 2, "possible": 7, "coverage": 0.2857,
    }  # fmt: skip
    families = found["families"]
    assert isinstance(families, dict)
    assert list(families) == ["PAR", "MOE"]
    assert families["MOE"]["coverage"] == 0


def test_coverage_of_a_part_counts_cases_on_richer_and_leaner_recipes() -> None:
    came = run(ended("PAR-01", "a@pairs", "holds"), ended("PAR-01", "b", "broken"), ended("MOE-01", "g", "holds"))
    planned = replace(came.plan, items=(Item(id="PAR-01", case="a"), Item(id="MOE-01", case="g")))
    found = coverage(came, verdict(came, TODAY), Part(profile="some", plan=planned))
    assert (found.profile, found.total.planned, found.total.answered) == ("some", 2, 2)


def test_coverage_of_a_part_that_was_not_planned_is_refused() -> None:
    came = run(ended("PAR-01", "a", "holds"))
    more = replace(came.plan, items=(*came.plan.items, Item(id="MOE-01", case="g")))
    with pytest.raises(Refused, match=r"profile = 'some': has items that the record did not plan, 1: MOE-01\[g\]"):
        coverage(came, verdict(came, TODAY), Part(profile="some", plan=more))


def test_the_coverage_table_has_a_row_per_family_and_explains_the_count() -> None:
    title, *lines, total, kinds, _ = table(coverage(RUN, verdict(RUN, TODAY))).split("\n")
    assert title == "mine 3, profile TOPO-02,ARGV-02,PREC-04,PAT-08"
    assert lines == [
        "     planned  holds  violated  deviates  stack  device  adapter  case  not run  broken  coverage",
        "PAR        6      1         1                1       1        1     1                       50 %",
        "MOE        3                                                  1              1       1       0 %",
        "all        9      1         1                1       1        2     1        1       1      29 %",
    ]
    assert total == "coverage: 2 answered of 7 (9 planned, less 2 that the stack or this device lacks): 29 %"
    assert kinds.startswith("not offered, by kind of reason. stack: the stack lacks it; device: ")
    assert kinds.endswith("; case: the case is shaped otherwise")


@pytest.mark.parametrize(("number", "of", "told"), [(3, 3, "100 %"), (0, 3, "0 %"), (2, 3, "67 %"), (1, 200, "0 %")])
def test_coverage_is_rounded_to_whole_percent(number: int, of: int, told: str) -> None:
    judged = run(*(ended("PAR-01", f"c{n}", "holds" if n < number else "broken") for n in range(of)))
    assert f"lacks): {told}\n" in table(coverage(judged, verdict(judged, TODAY)))


BEST_FIRST = ("violated", "deviates", "holds", "broken", "not run", "case", "adapter", "device", "stack")


@pytest.mark.parametrize("pair", [*permutations(BEST_FIRST, 2)], ids=" ".join)
def test_a_case_asked_on_two_recipes_counts_by_its_better_outcome(pair: tuple[str, str]) -> None:
    came = []
    for rung, became in zip(("pairs", "dense"), pair, strict=True):
        case = f"a@{rung}"
        if became in LACKS:
            came.append(lacking("PAR-01", case, became))  # type: ignore[arg-type]  # from a table
        else:
            came.append(ended("PAR-01", case, "violated" if became == "deviates" else became))  # type: ignore[arg-type]
    judged = verdict(run(*came), TODAY)
    results = [
        replace(each, outcome="deviates") if became == "deviates" else each
        for each, became in zip(judged.results, pair, strict=True)
    ]
    counts = coverage(run(*came), replace(judged, results=tuple(results))).total.counts
    assert {name for name, count in counts.items() if count} == {min(pair, key=BEST_FIRST.index)}


def test_coverage_is_shown_as_a_dash_if_the_stack_lacks_everything_planned() -> None:
    alone = run(lacking("PAR-01", "a", "stack"))
    found = coverage(alone, verdict(alone, TODAY))
    assert found.total.coverage is None
    assert "0 answered of 0 (1 planned, less 1 that the stack or this device lacks): -" in table(found)


def test_the_coverage_command_reads_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.jsonl").write_text(record.write(RUN, TODAY))
    with pytest.raises(SystemExit) as ending:
        main(["coverage", "--record", str(tmp_path), "--record", str(tmp_path / "run.jsonl"), "--json"])
    assert ending.value.code == 0
    assert json.loads(capsys.readouterr().out) == [of(RUN), of(RUN)]
    with pytest.raises(SystemExit):
        main(["coverage", "--record", str(tmp_path)])
    text = capsys.readouterr().out
    assert "coverage: 2 answered of 7 (9 planned, less 2 that the stack or this device lacks): 29 %" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["PAR", "MOE", "all"]


@pytest.mark.parametrize("words", [[], ["--stack", "reference", "--record", "x"], ["--record", "x", "--ranks", "2"]])
def test_the_coverage_command_refuses_a_stack_together_with_records(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["coverage", *words])
    assert ending.value.code == 2
    assert "rankproof: " in capsys.readouterr().err
