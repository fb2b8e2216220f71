"""Frozen sets of contracts: what a verdict about a release counts, what it only shows, and who may write one."""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.contract import Law
from contracts.court import profiles, record
from contracts.court.report import render
from contracts.court.verdict import verdict
from contracts.harness import law_release
from contracts.harness.law_release import Frozen, differences, freeze, frozen, latest, load, names, pinned
from contracts.spec import Refused
from contracts.spec.records import FORMS, Run
from tests_unit._parties.law import LAW
from tests_unit._parties.running import BAD, Done, rankproof
from tests_unit.gate.test_deviations import ended, run

TODAY = datetime.date(2026, 11, 23)


def test_every_frozen_law_is_unchanged_and_in_the_changelog() -> None:
    assert names()
    said = (law_release.FOLDER / law_release.CHANGELOG).read_text(encoding="utf-8")
    for name in names():
        release = load(name)
        assert said.count(f"\n## {name}\n") == 1
        # ids are permanent: what was named once is known, or the plan of a verdict about it says that it is gone
        plan = pinned(LAW, profiles.plan(LAW, "full"), release)
        assert {id for id in release.contracts if id not in {*LAW.ids()}} <= {*plan.gone}


def test_an_edited_frozen_law_is_refused(tmp_path: Path) -> None:
    freeze(LAW, "2026.11", tmp_path)
    file = tmp_path / "2026.11.json"
    body = json.loads(file.read_text())
    del body["contracts"]["PAT-01"]
    file.write_text(json.dumps(body))
    with pytest.raises(Refused, match="belongs to other contracts"):
        load("2026.11", tmp_path)
    with pytest.raises(Refused, match=r"law = '2026.13': is not a release; use one of 2026.11"):
        load("2026.13", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("2026.11", "is not later than 2026.11"), ("2026.10", "is not later"), ("november", "is not a year and a month")],
)
def test_a_law_is_frozen_once_and_in_order(name: str, words: str, tmp_path: Path) -> None:
    freeze(LAW, "2026.11", tmp_path)
    with pytest.raises(Refused, match=words):
        freeze(LAW, name, tmp_path)
    freeze(LAW, "2026.12", tmp_path)
    said = (tmp_path / "CHANGELOG.md").read_text()
    assert said.index("## 2026.12") < said.index("## 2026.11") < said.index("The first frozen set")
    assert "Nothing changed." in said


def test_a_frozen_law_stores_only_what_changed(tmp_path: Path) -> None:
    other = Law()
    other.contracts, other.untested = {**LAW.contracts}, LAW.untested
    del other.contracts["PAT-01"]
    other.contracts["PAT-02"] = replace(other.contracts["PAT-02"], tier="gpu")
    written = [freeze(law, name, tmp_path) for law, name in ((LAW, "2026.11"), (other, "2026.12"), (LAW, "2027.01"))]
    assert [load(each.name, tmp_path) for each in written] == written
    body = json.loads((tmp_path / "2026.12.json").read_text())
    assert (body["since"], body["removed"], [*body["contracts"]]) == ("2026.11", ["PAT-01"], ["PAT-02"])
    (tmp_path / "2026.11.json").write_text(json.dumps(body | {"name": "2026.11", "since": "2026.12"}))
    with pytest.raises(Refused, match=r"2026.11.since = '2026.12': is no earlier release"):
        load("2027.01", tmp_path)


def test_changes_between_two_frozen_laws_are_listed() -> None:
    now = frozen(LAW, "2026.12")
    before = {**now.contracts}
    before["OLD-01"] = before.pop("PAT-01")
    before["PAT-01a"] = replace(before["PAT-01a"], statement="Another.", cases=("gone", *before["PAT-01a"].cases[1:]))
    told = differences(replace(now, contracts=before), now)
    assert told == ["- Added: PAT-01", "- Removed: OLD-01", "- Reworded: PAT-01a", "- More cases: PAT-01a (1)",
                    "- Fewer cases: PAT-01a (gone)"]  # fmt: skip


def test_a_plan_lists_contracts_that_a_frozen_law_lacks_and_those_that_are_gone() -> None:
    today = frozen(LAW, "2026.11")
    first = next(iter(LAW.contracts["PAT-01"].asked))
    older = {id: each for id, each in today.contracts.items() if not id.startswith("PAT-02")}
    older["PAT-01"] = replace(older["PAT-01"], statement="Another.", cases=(first, "gone"))
    older["PAT-99"] = Frozen(tier="unit", statement="Retired.", cases=("one",))
    plan = pinned(LAW, profiles.plan(LAW, "PAT-01,PAT-02"), replace(today, contracts=older))
    later = [str(item) for item in profiles.plan(LAW, "PAT-01,PAT-02").items]
    kept = {f"PAT-01[{first}]"} | {each for each in later if each.startswith("PAT-01a")}
    assert plan.added == tuple(each for each in later if each not in kept)
    assert plan.gone == ("PAT-99", "PAT-01[gone]")
    assert plan.reworded == ("PAT-01",)
    assert plan.items == profiles.plan(LAW, "PAT-01,PAT-02").items, "all of it is judged"


def test_changes_since_the_latest_frozen_law_are_listed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not frozen"):
        latest(LAW, tmp_path)
    freeze(LAW, "2026.11", tmp_path)
    assert latest(LAW, tmp_path).name == "2026.11"
    fewer = Law()
    fewer.contracts = {id: each for id, each in LAW.contracts.items() if id != "PAT-01"}
    fewer.untested = LAW.untested
    with pytest.raises(Refused, match=r"2026.11': is not the law of today: - Removed: PAT-01; freeze it"):
        latest(fewer, tmp_path)


def about(judged: Run, *added: str) -> Run:
    return replace(judged, plan=replace(judged.plan, law="2026.11 (0123456789ab)", added=added, gone=("PAR-09",)))


def test_contracts_added_later_are_listed_and_not_counted() -> None:
    judged = run(ended("PAR-01", "a", "holds"), ended("PAR-01", "b", "violated"))
    assert verdict(judged, TODAY).word == "violated"
    pinned_run = about(judged, "PAR-01[b]")
    found = verdict(pinned_run, TODAY)
    assert (found.word, found.counts["violated"], len(found.results)) == ("conformant", 0, 1)
    assert [str(each.item) for each in found.added] == ["PAR-01[b]"]
    for form in FORMS:
        if form in ("annotations", "sarif", "comment", "check-run", "code-quality"):
            continue  # they are of what is counted
        told = " ".join(render(pinned_run, found, form).split())
        assert "PAR-01[b]" in told or form == "json"
        assert form == "junit" or "PAR-09" in told
    [added] = json.loads(render(pinned_run, found, "json"))["added"]
    assert (added["id"], added["case"], added["outcome"]) == ("PAR-01", "b", "violated")
    counted = verdict(about(judged, "PAR-01[a]"), TODAY)
    assert (counted.word, counted.counts["holds"]) == ("violated", 0)
    again, _ = record.read(record.write(pinned_run, TODAY))
    assert verdict(again, TODAY) == found


def test_a_check_against_a_frozen_law_names_it(tmp_path: Path) -> None:
    words = ("check", "--with", "none", "--stack", f"{BAD}:ForgetsPipeline", "--profile", "TOPO-02[tp2-ep2-on-8]")

    def check(*more: str, code: int) -> Done:
        return rankproof(*words, *more, "--report", "out", cwd=tmp_path, code=code)

    done = check("--law", names()[-1], code=0)
    assert f"Law {names()[-1]} (" in done.stdout
    assert record.load(tmp_path / "out")[0].plan.added == ()
    done = check("--law", "1999.01", code=2)
    assert f"law = '1999.01': is not a release; use one of {names()[0]}" in done.stderr
