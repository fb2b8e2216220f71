"""The rule takes the fixes that it says, and a fix is named by what the commit before it violates."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.history import Fix, Row, drawn, fate_of, judged, kept
from benchmarks.history_page import PAGE, counted, fates, page, stored
from tests_unit._parties.running import ROOT
from tests_unit.gate.test_base_and_head import ADAPTER, VERSIONS
from tests_unit.test_answering import checkout as repository
from tests_unit.test_answering import git

RULE = {
    "repository": "o/fork", "stack": "ours:Ours", "since": "2020-01-01", "until": "2099-12-31",
    "subject": r"(?i)^\[?fix(es)?\b(?!\(docs\))", "profiles": {"forked/": "PAT-01", "other/": "PAT-01,PAT-02"},
}  # fmt: skip


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fault, its fix, a fix of nothing that is asked, a fix of documents and one that is no fix."""
    folder = tmp_path_factory.mktemp("history") / "fork"
    repository(folder, {"forked/__init__.py": VERSIONS["wrong"], "other/a": ""})
    for name, text, subject in (
        ("forked/__init__.py", VERSIONS["right"], "Fix the depth"),
        ("forked/__init__.py", f"{VERSIONS['right']}\n# more\n", "[fix] a comment"),
        ("forked/__init__.py", f"{VERSIONS['right']}\n# docs\n", "fix(docs): words"),
        ("README", "", "fix: a page"),
        ("other/a", "b", "Prefix of a fix"),
    ):
        (folder / name).write_text(text, encoding="utf-8")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", subject)
    (folder.parent / "ours.py").write_text(ADAPTER, encoding="utf-8")
    return folder


def test_the_history_rule_selects_fixes_of_judged_code_only(fork: Path) -> None:
    assert [(fix.subject, fix.profile) for fix in drawn(fork, RULE)] == [
        ("[fix] a comment", "PAT-01"), ("Fix the depth", "PAT-01"),
    ]  # fmt: skip
    assert not [*drawn(fork, {**RULE, "until": "2020-01-02"})]


def test_a_fix_is_named_by_what_the_commit_before_it_violates(
    fork: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fork.parent)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = {row.subject: row for row in kept(fork, drawn(fork, RULE), (), sys.executable, tmp_path)}
    assert rows["Fix the depth"].fate == "named"
    assert re.search(r"PAT-01\[.*\]: violated: \w+ at depth \d+ has \d+ blocks", rows["Fix the depth"].first)
    assert rows["Fix the depth"].red_s is not None
    assert rows["[fix] a comment"].fate == "blind"
    assert [*kept(fork, drawn(fork, RULE), (), "no interpreter: the journal has them", tmp_path)] == [*rows.values()]


def test_a_fix_that_cannot_be_judged_or_is_set_aside_has_its_reason(fork: Path, tmp_path: Path) -> None:
    fix = Fix(commit=git(fork, "rev-parse", "HEAD"), day="", subject="s", stack="no:Such", profile="PAT-01")
    assert judged(fork, fix, sys.executable, tmp_path).fate == "not asked"
    why = {"commit": fix.commit, "kind": "device", "why": "streams"}
    (row,) = kept(fork, [fix], [why], sys.executable, tmp_path)
    assert (row.fate, row.first) == ("device", "streams")


def test_the_history_page_has_the_stored_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, *stored()) == text, "python -m benchmarks.history_page"
    rules, rows, _ = stored()
    _, now, of = counted(fates(rows, rules.get("note", ()), rules["aside"]), rules["aside"])
    assert f"{now} of {of}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_fix_that_was_judged_twice_shows_both_and_one_set_aside_neither() -> None:
    row = Row(
        commit="c0ffee0", day="2026-05-01", subject="Fix [x]", stack="ours", profile="PAT", fate="blind", first="-"
    )
    again = replace(row, fate="named", first="PAT-01: violated: 3|4", seconds=61.2, red_s=12.0)
    other = replace(row, commit="facade0")
    aside = [
        {"commit": "facade0", "kind": "device", "why": "a kernel"},
        {"commit": "f", "kind": "question", "why": "x"},
    ]
    rules = {"rule": [{"takes": 4}], "aside": aside, "note": [{"commit": "c0ffee0", "why": "told [now]"}]}
    marks = "".join(f"<!-- {mark} -->old<!-- /{mark} -->" for mark in ("named", "aside", "months"))
    month = {"stack": "ours", "month": "2026-05", "commit": "c0ffee0", "answered": 2, "of": 4, "absent": 1}
    text = page(marks, rules, [row, other, again], [month])
    assert "ours `c0ffee0` | Fix \\[x] | blind | named | told \\[now] | 61 | 12 s" in text
    assert "The rules take 4 fixes. 1 are set aside (1 device), and 1 were not judged yet" in text
    assert "**Of the other 2, 1 are named** (50 %); 0 were when they were first" in text
    assert "| ours | 2026-05 | `c0ffee0` | 2 of 4 | 50 % | 1 | 67 % |" in text
    assert "old" not in text.replace("told", "")
    rules["note"][0]["fate"] = "blind"
    assert "| blind | blind | told \\[now] | 61 |  |" in page(marks, rules, [row, other, again], [month])
    rules["note"][0]["suite"] = "of the first"
    rows = [replace(row, suite="of the first", fate="named"), other, again]
    assert "| blind | named | PAT-01: violated: 3\\|4 | 61 | 12 s |" in page(marks, rules, rows, [month])


def test_a_fix_is_named_by_a_violation_and_not_by_a_declined_case() -> None:
    lost = {"item": "PAT-01", "kind": "lost", "head": {"outcome": "not offered", "words": "no such option"}}
    red = {"item": "PAT-02[x]", "kind": "worse", "head": {"outcome": "violated", "words": "3 and\n4"}}
    assert fate_of([lost], "VIOLATED: (1 lost, 3 hold)") == ("not asked", "PAT-01: not offered: no such option")
    assert fate_of([lost, red], "VIOLATED: (1 lost, 3 hold)") == ("named", "PAT-02[x]: violated: 3 and 4")
    assert fate_of([], "CONFORMANT: (3 hold)")[0] == "blind"
    assert fate_of([], "NOTHING RAN: (3 judged on neither side)")[0] == "not asked"
