"""The figure: what was detected of what was planted, and the README that shows it."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from contracts.court.promises import PROMISES
from contracts.harness import detection
from contracts.harness.detection import Alarms, Detection
from contracts.harness.operators.reach import content
from contracts.harness.operators.trials import JOURNAL, Trial
from contracts.spec import Refused, codec
from contracts.spec.records import Fate, Kill
from tests_unit._parties.bugs import LAW
from tests_unit._parties.running import invoked

ROOT = Path(__file__).parents[2]


def kill(of: str, fate: Fate, *, seconds: float = 0.0, loss: str = "", norm: str = "", bug: str = "b1") -> Kill:
    return Kill(mutant="M", of=of, case="a", fate=fate, words="w", bugs=(bug,), seconds=seconds, loss=loss, norm=norm)


KILLS = {
    "unit": (kill("PAT-01", "killed", seconds=1.0), kill("PAT-02", "survived"), kill("MOE-01", "void", bug="b2")),
    "dist": (
        kill("PAR-01", "killed", seconds=3.0, loss="agrees", norm="agrees", bug="b2"),
        kill("PAR-02", "killed", seconds=9.0, loss="agrees", norm="2 and not 1"),
        kill("PAR-03", "killed", seconds=5.0, loss="2 and not 1", norm="agrees"),
    ),
}
TRIALS = [
    Trial(content="c", change="off-by-one@a.py:1:0", fate="killed", seconds=2.0),
    Trial(content="c", change="off-by-one@a.py:2:0", fate="survived"),
    Trial(content="c", change="lost-clone@a.py:3:0", fate="crashed"),
    Trial(content="c", change="lost-clone@a.py:4:0", fate="unreached"),
    Trial(content="c", change="lost-clone@a.py:5:0", fate="equivalent"),
]
ALARMS = [Alarms(content="c", seed=seed, cases=12, judged=12, held=11, red=({},) * seed, stack="s") for seed in (0, 1)]


def test_detection_counts_leave_out_bugs_without_effect() -> None:
    found = detection.drawn_from(KILLS, TRIALS, ALARMS)
    assert [str(each) for each in found.tiers.values()] == ["1 of 2 (50 %)", "3 of 3 (100 %)"]
    assert found.tiers["dist"].median_s == 5.0
    assert {name: str(each) for name, each in found.families.items()} == {
        "PAT": "1 of 2 (50 %)", "PAR": "3 of 3 (100 %)",
    }  # fmt: skip
    assert {name: each.detected for name, each in found.entries.items()} == {"b1": 3, "b2": 1}
    assert (found.trained, found.loss, found.both) == (3, 2, 1)
    assert (found.noticed.detected, found.noticed.planted, found.noticed.median_s) == (2, 3, 2.0)
    assert found.operators["lost-clone"] == {"killed": 0, "crashed": 1, "survived": 0, "equivalent": 1, "unreached": 1}
    assert (found.stacks, found.cases, found.red) == (2, 24, 1)


def test_a_detection_summary_has_only_the_parts_that_were_given() -> None:
    assert detection.summary(Detection()) == []
    assert [line.partition(":")[0] for line in detection.summary(detection.drawn_from({}, [], ALARMS))] == [
        "- False alarms"
    ]


def test_the_detection_command_refuses_journals_of_two_versions_and_writes_text_and_json(tmp_path: Path) -> None:
    old = Trial(content="older", change="off-by-one@a.py:9:0", fate="survived")
    rows = [json.dumps(asdict(each)) for each in (old, *TRIALS)]
    (tmp_path / JOURNAL).write_text("\n".join(rows) + "\n", encoding="utf-8")
    told = invoked("selftest", "--figure", tmp_path, "--report", tmp_path / "out", code=0)
    assert "2 of 3 (67 %)" in told.output
    assert (tmp_path / "out/detection.md").read_text(encoding="utf-8") == told.output
    written = json.loads((tmp_path / "out/detection.json").read_text(encoding="utf-8"))
    assert codec.decode(Detection, written, name="figure") == detection.detection([tmp_path])
    with pytest.raises(Refused, match="has no kill matrix and no journal"):
        detection.detection([tmp_path / "out"])


def test_detection_figures_leave_out_results_of_another_version(tmp_path: Path) -> None:
    rows = [Trial(content=content(), change="off-by-one@a.py:1:0", fate="killed"), TRIALS[0]]
    for row, planted in zip(rows, (1, 0), strict=True):
        (tmp_path / JOURNAL).write_text(json.dumps(asdict(row)) + "\n", encoding="utf-8")
        assert detection.detection([tmp_path], current=True).noticed.planted == planted
        assert detection.detection([tmp_path]).noticed.planted == 1


SURVIVORS = """ACK-06 ARG-07 ARG-11 ARG-22 AUX-13 AUX-16 AUX-17 CLP-12 CMP-02 DAT-12 DAT-13 DAT-28 DPS-15 DPS-26
DPS-41 DSP-14 DSP-17 DSP-20 DSP-21 EXB-05 EXB-07 FSD-07 FSD-09 HYB-25 INI-09 INS-04 MXP-02 MXP-04 OPT-34 PG-08 PG-10
PG-20 PG-23 PPS-02 PPS-13 PRV-07 RSM-12 RSM-21 RSM-34 RSM-37 RSM-47 RSM-54 SSM-24 TIE-02 TST-06 TST-13"""
"""Planted bugs that stayed green, or ended without a verdict."""


def test_each_surviving_bug_became_a_mutant_or_is_explained() -> None:
    pytest.importorskip("torch")
    argued = (ROOT / "docs/detection.md").read_text(encoding="utf-8").partition("## Argued")[2]
    reasoned = " ".join(re.findall(r"^- \*\*(.*?)\*\*", argued, re.MULTILINE))
    embodied = {bug for each in (*LAW.mutants, *PROMISES.values()) for bug in each.bugs}
    assert len(SURVIVORS.split()) == 46
    assert [bug for bug in SURVIVORS.split() if bug not in embodied and bug not in reasoned] == []


def test_the_badge_counts_all_planted_bugs_and_turns_red_for_a_false_alarm() -> None:
    half = detection.Detected(detected=9, planted=10)
    found = detection.badge(Detection(tiers={"unit": half}, noticed=half, stacks=3, cases=36))
    assert (found["message"], found["color"]) == ("18 of 20, 0 false alarms", "yellow")
    all_of_many = detection.Detected(detected=990, planted=990)
    found = detection.badge(Detection(tiers={"unit": all_of_many}, noticed=half))
    assert (found["message"], found["color"]) == ("999 of 1000", "yellow")
    assert detection.badge(Detection(tiers={"unit": all_of_many}, stacks=3, cases=36, red=1))["color"] == "red"
    assert detection.badge(Detection())["message"] == "nothing was planted"


def test_a_false_alarm_of_a_correct_stack_is_counted_from_its_record(tmp_path: Path) -> None:
    red = {"seed": 61, "stack": "drawn 61", "item": "MEM-01i[recurrent]", "outcome": "violated", "words": "it is"}
    row = {"content": "c", "seed": 61, "cases": 12, "held": 9, "judged": 12, "red": [red], "stack": "drawn 61"}
    (tmp_path / detection.FALSE_ALARMS).write_text(json.dumps(row) + "\n", encoding="utf-8")
    found = detection.detection([tmp_path])
    assert (found.stacks, found.cases, found.red) == (1, 12, 1)


def test_the_pages_show_the_detection_figure_of_detection_json() -> None:
    data = json.loads((ROOT / "docs/detection.json").read_text(encoding="utf-8"))
    shown = detection.shown(codec.decode(Detection, data["figure"], name="figure"), date=data["date"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = detection.picture(codec.decode(Detection, data["figure"], name="figure"))
    assert (ROOT / "docs/images/detection.svg").read_text(encoding="utf-8") == drawn, (
        "copy badge.svg of `rankproof selftest --figure … --report DIR` to docs/images/detection.svg"
    )
    assert readme.partition("<!-- figure -->\n")[2].partition("<!-- end of the figure -->")[0] == shown
    page = (ROOT / "docs/detection.md").read_text(encoding="utf-8")
    tables = detection.markdown(codec.decode(Detection, data["figure"], name="figure")).removeprefix("# Detection\n")
    assert page.partition("<!-- figure -->\n")[2].partition("<!-- end of the figure -->")[0] == tables
