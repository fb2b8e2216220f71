"""A run with a baseline: what it says on the command line, and that the record carries it."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.court import record
from contracts.court.baseline import baseline, change
from contracts.court.report import render
from contracts.court.verdict import verdict
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


def since(before: Run, after: Run) -> Run:
    there = verdict(before, TODAY)
    return replace(after, baseline=baseline(before, there, replace(after.header, device=before.header.device)))


@pytest.mark.unit
def test_what_is_new_fixed_lost_and_slower_is_told_in_every_form() -> None:
    """Slower needs both the ratio and the floor, and is never red."""
    before = on_a_cpu(run(
        ended("PAR-01", "a", "holds", seconds=1.0), ended("PAR-01", "b", "violated"), ended("PAR-01", "c", "holds"),
        ended("PAR-01", "d", "holds", seconds=10.0), ended("PAR-01", "e", "holds", seconds=0.1),
        ended("PAR-01", "f", "violated"), ended("PAR-01", "g", "holds"),
    ))  # fmt: skip
    after = on_a_cpu(run(
        ended("PAR-01", "a", "holds", seconds=2.0), ended("PAR-01", "b", "holds"), ended("PAR-01", "c", "violated"),
        ended("PAR-01", "d", "holds", seconds=19.9), ended("PAR-01", "e", "holds", seconds=1.0),
        ended("PAR-01", "f", "violated"), ended("PAR-01", "g", "not offered"), ended("PAR-01", "h", "broken"),
    ))  # fmt: skip
    compared = since(before, after)
    judged = verdict(compared, TODAY)
    found = change(compared, judged)
    assert found is not None
    assert dict(found.told(9)) == {
        "new": "PAR-01[c], PAR-01[h]", "fixed": "PAR-01[b]", "lost": "PAR-01[g] (not offered now)",
        "slower": "PAR-01[a] 1 s → 2 s",
    }  # fmt: skip
    assert dict(found.told(1))["new"] == "PAR-01[c] and 1 more"
    assert found.headline.endswith("2 new, 1 fixed, 1 lost, 1 slower")
    assert json.loads(render(compared, judged, "json"))["compared"]["fixed"] == ["PAR-01[b]"]
    for form in ("terminal", "markdown", "html"):
        told = " ".join(render(compared, judged, form).split())
        assert "2 new, 1 fixed, 1 lost, 1 slower" in told
        assert "1 s → 2 s" in told
    alone = since(on_a_cpu(run(ended("PAR-01", "a", "holds", seconds=1.0))),
                  on_a_cpu(run(ended("PAR-01", "a", "holds", seconds=9.0))))  # fmt: skip
    assert verdict(alone, TODAY).word == "conformant"


@pytest.mark.unit
def test_a_baseline_of_an_older_suite_still_says_what_is_lost() -> None:
    compared = since(on_a_cpu(BEFORE), on_a_cpu(AFTER))
    assert compared.baseline is not None
    older = replace(compared, baseline=replace(compared.baseline, before={}))
    assert change(older, verdict(older, TODAY)) is None
    assert verdict(older, TODAY).word == verdict(compared, TODAY).word == "violated"


def on_a_cpu(judged: Run) -> Run:
    return replace(judged, header=replace(judged.header, device="cpu"))
