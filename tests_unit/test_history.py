"""The rule takes the fixes that it says, and a fix is named by what the commit before it violates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.history import Fix, drawn, judged, kept
from tests_unit._parties.running import ROOT
from tests_unit.gate.test_base_and_head import ADAPTER, VERSIONS
from tests_unit.test_answering import checkout as repository
from tests_unit.test_answering import git

pytestmark = pytest.mark.unit

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


def test_the_rule_takes_fixes_of_what_is_asked_and_nothing_else(fork: Path) -> None:
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
    assert "has 48 blocks" in rows["Fix the depth"].first
    assert rows["[fix] a comment"].fate == "blind"
    again = [*kept(fork, drawn(fork, RULE), (), "no interpreter: the journal has them", tmp_path)]
    assert again == [*rows.values()]


def test_what_cannot_be_asked_or_is_set_aside_says_so(fork: Path, tmp_path: Path) -> None:
    fix = Fix(commit=git(fork, "rev-parse", "HEAD"), day="", subject="s", stack="no:Such", profile="PAT-01")
    assert judged(fork, fix, sys.executable, tmp_path).fate == "not asked"
    why = {"commit": fix.commit, "kind": "device", "why": "streams"}
    (row,) = kept(fork, [fix], [why], sys.executable, tmp_path)
    assert (row.fate, row.first) == ("device", "streams")
