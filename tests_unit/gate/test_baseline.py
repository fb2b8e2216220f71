"""A run with a baseline: what it says on the command line, and that the record carries it."""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.court import record
from contracts.court.baseline import baseline, change, unlike
from contracts.court.report import render
from contracts.court.verdict import OWED, verdict
from contracts.harness.cli import main
from contracts.spec import Refused, codec
from contracts.spec.records import Baseline, Before, Header, Item, Outcome, Run
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


def test_report_names_the_items_that_are_no_longer_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = written(tmp_path / "before", BEFORE), written(tmp_path / "after", AFTER)
    assert rankproof("report", after) == 0
    assert rankproof("report", after, "--baseline", before) == 1
    assert "fault (baseline): PAR-01[b] was judged in the baseline (mine 3" in capsys.readouterr().out.replace(
        "\n", " "
    )
    assert rankproof("report", before, "--baseline", after) == 0


def test_a_baseline_of_another_kind_of_run_is_refused_with_every_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path / "before", BEFORE, ranks=4, profile="launch")
    assert rankproof("report", written(tmp_path / "after", AFTER), "--baseline", before) == 2
    said = capsys.readouterr().err
    assert "baseline.profile = 'launch'" in said
    assert "baseline.ranks = 4" in said


def test_check_compares_with_the_baseline_and_stores_it_in_the_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ("--stack", f"{BAD}:ForgetsPipeline", "--with", "none")
    item = ("--profile", "TOPO-02[tp2-ep2-on-8]")
    assert rankproof("check", *asked, *item, "--report", tmp_path / "first") == 0
    again = ("--report", tmp_path / "second", "--baseline", tmp_path / "first")
    assert rankproof("check", *asked, *item, *again) == 0
    found, _ = record.load(tmp_path / "second")
    assert [str(each) for each in found.baseline.judged] == ["TOPO-02[tp2-ep2-on-8]"]
    capfd.readouterr()
    assert rankproof("check", *asked, "--profile", "TOPO-02", *again) == 2
    assert "baseline.profile = 'TOPO-02[tp2-ep2-on-8]'" in capfd.readouterr().err
    assert rankproof("check", *asked, *item, "--report", tmp_path / "first", "--baseline", tmp_path / "first") == 2
    assert "where this run writes" in capfd.readouterr().err
    assert (tmp_path / "first" / "run.jsonl").exists()


MAIN = """
from contracts.spec.errors import NotOffered
from contracts.spec.pattern import blocks, parse

class Broken:
    name, version, offers, layouts, labels = "mine", "1", frozenset({"blocks"}), frozenset(), {}

    def blocks(self, pattern, depth):
        if depth % len(pattern):
            self.fail()
        return blocks(parse(pattern, depth))

    def fail(self):
        raise RuntimeError("broken on main")

class Declines(Broken):
    def fail(self):
        raise NotOffered("not today")
"""


def test_an_item_that_is_broken_in_the_baseline_may_not_be_declined(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main_or_change.py").write_text(MAIN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("check", "--profile", "PAT-01", "--with", "none", "--stack")
    assert rankproof(*words, "main_or_change:Broken", "--report", tmp_path / "main") == 4
    against = ("--report", tmp_path / "change", "--baseline", tmp_path / "main")
    assert rankproof(*words, "main_or_change:Declines", *against) == 1
    assert "was broken in the baseline (mine 1" in " ".join(capfd.readouterr().out.split())
    assert rankproof(*words, "main_or_change:Broken", *against) == 4, "what is broken there is not forgiven here"


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a run that did not finish"])
def test_a_baseline_that_is_not_there_is_incomplete_in_every_form(
    there: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if there != "nothing":
        (tmp_path / "main").mkdir()
    if there == "a run that did not finish":
        (tmp_path / "main/run.jsonl.part").touch()
    asked = ("check", "--stack", f"{BAD}:ForgetsPipeline", "--with", "none", "--profile", "TOPO-02[tp2-ep2-on-8]")
    report = tmp_path / "change"
    assert rankproof(*asked, "--report", report, "--baseline", tmp_path / "main") == 3
    why = "its run did not finish" if there == "a run that did not finish" else "there is no record"
    said = f"{tmp_path / 'main'} was to be the baseline, and {why}"
    assert f"fault (no baseline): {said}" in " ".join(capfd.readouterr().out.split())
    found, closing = record.load(report)
    assert (verdict(found, TODAY).word, closing.exit_code) == ("incomplete", 3)
    for name in ("summary.md", "junit.xml", "report.html", "results.sarif", "verdict.json"):
        assert why in (report / name).read_text(), name
    assert rankproof("replay", report) == 3
    assert rankproof("report", report, "--baseline", tmp_path / "main") == 2


def since(before: Run, after: Run) -> Run:
    there = verdict(before, TODAY)
    return replace(after, baseline=baseline(before, there, replace(after.header, device=before.header.device)))


def test_new_fixed_lost_and_slower_items_are_in_every_form() -> None:
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


def became(*pairs: tuple[Outcome, float, Outcome, float]) -> tuple[Run, list[Item]]:
    """A run of one item for each pair: the outcome and the seconds in the baseline, and those now."""
    after = run(*(ended("PAR-01", f"c{n}", now, seconds) for n, (*_, now, seconds) in enumerate(pairs)))
    items = [each.item for each in after.results]
    before = {
        str(item): Before(outcome=was, seconds=seconds) for item, (was, seconds, *_) in zip(items, pairs, strict=True)
    }
    judged = tuple(item for item, (was, *_) in zip(items, pairs, strict=True) if was in OWED)
    compared = replace(after, baseline=Baseline(of="it", judged=judged, before=before))
    return record.read(record.write(compared, TODAY))[0], items


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("holds", "violated", "new"), ("holds", "broken", "new"), ("not run", "violated", "new"),
        ("violated", "broken", ""), ("broken", "violated", ""), ("violated", "violated", ""),
        ("violated", "holds", "fixed"), ("broken", "holds", "fixed"), ("not run", "holds", ""),
        ("holds", "not offered", "lost"), ("violated", "not run", "lost"), ("deviates", "untested", "lost"),
        ("broken", "not run", "lost"), ("broken", "not offered", "lost"), ("not offered", "not run", ""),
        ("holds", "holds", ""),
    ],
)  # fmt: skip
def test_an_item_is_new_fixed_or_lost_by_its_two_outcomes(was: Outcome, now: Outcome, told: str) -> None:
    compared, [item] = became((was, 0.0, now, 0.0))
    found = change(compared, verdict(compared, TODAY))
    shown = f"{item} ({now} now)" if told == "lost" else str(item)
    assert found.told(3) == ([(told, shown)] if told else [])


def test_a_red_item_that_was_not_planned_is_new_and_one_no_longer_planned_is_lost() -> None:
    after = run(ended("PAR-01", "a", "broken"), ended("PAR-01", "b", "holds"))
    gone = Item(id="PAR-01", case="c")
    compared = replace(after, baseline=Baseline(of="it", judged=(gone,), before={str(gone): Before(outcome="holds")}))
    found = change(compared, verdict(compared, TODAY))
    assert found.told(3) == [("new", "PAR-01[a]"), ("lost", "PAR-01[c] (not planned now)")]
    assert found.headline == "Compared with it: 1 new, 0 fixed, 1 lost, 0 slower"


@pytest.mark.parametrize(
    ("before", "now", "slower"),
    [(1.0, 2.0, True), (2.0, 4.0, True), (0.5, 1.5, True), (0.5, 1.49, False), (10.0, 19.9, False), (0.1, 1.0, False),
     (4.0, 4.0, False), (4.0, 1.0, False), (0.0, 1.0, True)],
)  # fmt: skip
def test_an_item_is_slower_if_it_takes_twice_as_long_and_a_second_more(before: float, now: float, slower: bool) -> None:
    for was, judged in (("holds", True), ("deviates", True), ("broken", False), ("not run", False)):
        compared, [item] = became((was, before, "holds", now))  # type: ignore[arg-type]  # from a table
        found = change(compared, verdict(compared, TODAY))
        assert [each.item for each, _ in found.slower] == ([item] if slower and judged else [])
    compared, _ = became(("holds", before, "broken", now))
    found = change(compared, verdict(compared, TODAY))
    assert found.slower == ()


def test_the_slowest_items_are_shown_first_and_the_rest_counted() -> None:
    compared, _ = became(("holds", 1.0, "holds", 3.0), ("holds", 4.0, "holds", 12.346), ("holds", 0.5, "holds", 3.5))
    found = change(compared, verdict(compared, TODAY))
    told = ["PAR-01[c1] 4 s → 12 s", "PAR-01[c2] 0.5 s → 3.5 s", "PAR-01[c0] 1 s → 3 s"]
    assert found.told(3) == found.told(4) == [("slower", ", ".join(told))]
    assert found.told(2) == [("slower", f"{told[0]}, {told[1]} and 1 more")]
    assert found.told(1) == [("slower", f"{told[0]} and 2 more")]


def test_a_run_without_a_baseline_has_no_change() -> None:
    assert change(AFTER, verdict(AFTER, TODAY)) is None


@pytest.mark.parametrize(
    ("name", "profile", "ranks", "device", "fields"),
    [
        ("mine", "launch", 2, "cpu", []),
        ("yours", "launch", 2, "cpu", ["stack"]),
        ("mine", "numeric", 2, "cpu", ["profile"]),
        ("mine", "launch", 1, "cpu", ["ranks"]),
        ("mine", "launch", 4, "cpu", ["ranks"]),
        ("mine", "launch", 2, "cuda", ["device"]),
        ("mine", "launch", 2, "", ["device"]),
        ("nine", "a", 1, "cuda", ["stack", "profile", "ranks", "device"]),
    ],
)
def test_the_baseline_is_the_last_run_of_the_same_stack_profile_ranks_and_device(
    name: str, profile: str, ranks: int, device: str, fields: list[str]
) -> None:
    earlier = codec.loads(Header, codec.dumps(replace(BEFORE.header, profile="launch", ranks=2, device="cpu")))
    if not fields:
        unlike(earlier, name, profile, ranks, device)
        return
    with pytest.raises(Refused) as caught:
        unlike(earlier, name, profile, ranks, device)
    assert caught.value.fields == tuple(f"baseline.{each}" for each in fields)


def test_runs_without_a_recorded_device_are_not_compared() -> None:
    with pytest.raises(
        Refused, match=r"^baseline\.device = 'not recorded': is not the device of this run, 'not recorded'"
    ):
        unlike(BEFORE.header, "mine", BEFORE.header.profile, 1, "")


def test_a_baseline_holds_its_stack_and_the_outcome_of_each_item() -> None:
    earlier = on_a_cpu(run(
        ended("PAR-01", "a", "holds", seconds=2.0), ended("PAR-01", "b", "violated"), ended("PAR-01", "c", "not run"),
        ended("PAR-01", "d", "not offered"), ended("PAR-01", "e", "broken"), ended("PAR-01", "f", "violated"),
        ended("GATE-01", "of-an-older-suite", "holds"),
    ))  # fmt: skip
    judged = verdict(earlier, TODAY)
    declared = [replace(each, outcome="deviates") if each.case == "f" else each for each in judged.results]
    found = baseline(earlier, replace(judged, results=tuple(declared)), on_a_cpu(AFTER).header)
    assert found.of == "the baseline (mine 3, suite 0123456789ab, 2026-06-15T12:00:00+00:00)"
    assert [each.case for each in found.judged] == ["a", "b", "e", "f"]
    assert {item: each for item, each in found.before.items() if item[-2] in "abc"} == {
        "PAR-01[a]": Before(outcome="holds", seconds=2.0), "PAR-01[b]": Before(outcome="violated"),
        "PAR-01[c]": Before(outcome="not run"),
    }  # fmt: skip
    nothing = on_a_cpu(run(ended("PAR-01", "a", "not run"), ended("PAR-01", "b", "not offered")))
    with pytest.raises(Refused, match=r"^baseline = 'incomplete': judged nothing, so nothing can be lost"):
        baseline(nothing, verdict(nothing, TODAY), nothing.header)


def test_a_baseline_of_an_older_suite_still_says_what_is_lost() -> None:
    compared = since(on_a_cpu(BEFORE), on_a_cpu(AFTER))
    assert compared.baseline is not None
    older = replace(compared, baseline=replace(compared.baseline, before={}))
    assert change(older, verdict(older, TODAY)) is None
    assert verdict(older, TODAY).word == verdict(compared, TODAY).word == "violated"


def on_a_cpu(judged: Run) -> Run:
    return replace(judged, header=replace(judged.header, device="cpu"))
