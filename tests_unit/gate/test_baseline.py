"""A run with a baseline: what it says on the command line, and that the record carries it."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.court import record
from contracts.harness.cli import main
from contracts.spec.records import Run
from tests_unit._parties.running import BAD
from tests_unit.gate.test_deviations import ended, run

TODAY = datetime.date(2026, 6, 15)


def written(folder: Path, judged: Run, **header: object) -> Path:
    folder.mkdir()
    here = replace(judged.header, device="cpu", **header)  # type: ignore[arg-type]
    (folder / "run.jsonl").write_text(record.write(replace(judged, header=here), TODAY))
    return folder


def rankproof(*words: object) -> int:
    with pytest.raises(SystemExit) as ending:
        main([str(word) for word in words])
    return int(ending.value.code or 0)


BEFORE = run(ended("PAR-01", "a", "holds"), ended("PAR-01", "b", "holds"))
AFTER = run(ended("PAR-01", "a", "holds"), ended("PAR-01", "b", "not offered"))


@pytest.mark.unit
def test_report_names_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = written(tmp_path / "before", BEFORE), written(tmp_path / "after", AFTER)
    assert rankproof("report", after) == 0
    assert rankproof("report", after, "--baseline", before) == 1
    assert "fault (baseline): PAR-01[b] was judged in the baseline (mine 3" in capsys.readouterr().out.replace(
        "\n", " "
    )
    assert rankproof("report", before, "--baseline", after) == 0


@pytest.mark.unit
def test_unlike_runs_are_refused_with_everything_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path / "before", BEFORE, ranks=4, profile="launch")
    assert rankproof("report", written(tmp_path / "after", AFTER), "--baseline", before) == 2
    said = capsys.readouterr().err
    assert "baseline.profile = 'launch'" in said
    assert "baseline.ranks = 4" in said


@pytest.mark.unit
def test_check_compares_and_the_record_carries_the_baseline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("--stack", f"{BAD}:ForgetsPipeline", "--with", "none")
    item = ("--profile", "TOPO-02[tp2-ep2-on-8]")
    assert rankproof("check", *asked, *item, "--report", tmp_path / "first") == 0
    again = ("--report", tmp_path / "second", "--baseline", tmp_path / "first")
    assert rankproof("check", *asked, *item, *again) == 0
    found, _ = record.load(tmp_path / "second")
    assert found.baseline is not None
    assert [str(each) for each in found.baseline.judged] == ["TOPO-02[tp2-ep2-on-8]"]
    capfd.readouterr()
    assert rankproof("check", *asked, "--profile", "TOPO-02", *again) == 2
    assert "baseline.profile = 'TOPO-02[tp2-ep2-on-8]'" in capfd.readouterr().err
    assert rankproof("check", *asked, *item, "--report", tmp_path / "first", "--baseline", tmp_path / "first") == 2
    assert "where this run writes" in capfd.readouterr().err
    assert (tmp_path / "first" / "run.jsonl").exists()
