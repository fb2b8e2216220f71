"""What a restarted session takes from the journal of the one before."""

from pathlib import Path

import pytest

from contracts.ranks.journal import Journal, Past, read_journal


def journal(path: Path, *calls: tuple[str, ...]) -> Past:
    written = Journal(path)
    for verb, nodeid, *outcome in calls:
        if verb == "report":
            written.report(nodeid, {"nodeid": nodeid, "outcome": outcome[0]})
        else:
            getattr(written, verb)(nodeid)
    written.close()
    return read_journal(path)


A, B = "test_x.py::test_a", "test_x.py::test_b[1-é]"


def test_a_missing_journal_has_no_past_tests(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == Past()


def test_a_finished_test_is_not_run_again_after_a_restart(tmp_path: Path) -> None:
    found = journal(tmp_path / "j", ("start", A), ("report", A, "passed"), ("report", A, "failed"), ("done", A))
    assert found.done == {A: [{"nodeid": A, "outcome": "passed"}, {"nodeid": A, "outcome": "failed"}]}
    assert found.under_way is None


def test_an_unfinished_test_in_a_journal_keeps_its_reports(tmp_path: Path) -> None:
    found = journal(tmp_path / "j", ("start", A), ("done", A), ("start", B), ("report", B, "passed"))
    assert list(found.done) == [A]
    assert found.under_way == B
    assert found.begun == ({"nodeid": B, "outcome": "passed"},)


def test_a_journal_continues_over_several_attempts(tmp_path: Path) -> None:
    journal(tmp_path / "j", ("start", A), ("report", A, "passed"))
    found = journal(tmp_path / "j", ("report", A, "failed"), ("done", A), ("start", B))
    assert found.done == {A: [{"nodeid": A, "outcome": "passed"}, {"nodeid": A, "outcome": "failed"}]}
    assert found.under_way == B


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_truncated_last_line_of_a_journal_is_ignored(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    journal(path, ("start", A), ("done", A), ("start", B))
    path.write_text(path.read_text(encoding="utf-8")[:-cut], encoding="utf-8")
    found = read_journal(path)
    assert list(found.done) == [A]
    assert found.under_way in (None, B)


def test_a_journals_content_survives_text_form(tmp_path: Path) -> None:
    found = journal(tmp_path / "j", ("start", A), ("report", A, "passed"), ("done", A), ("start", B))
    assert Past.of(found.text()) == found
