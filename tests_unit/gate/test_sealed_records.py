"""A record is sealed: by its digest against accidents, by a key against whoever can write a new digest."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import pytest

from contracts.checks.gate._recorded_run import TODAY, A, B, recorded
from contracts.court import record
from contracts.court.court import Court
from contracts.court.verdict import verdict
from contracts.spec.errors import Refused

pytestmark = pytest.mark.unit
RUN = recorded((A, "violated"), (B, "holds"))


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "key"
    file.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    monkeypatch.setenv(record.KEY_FILE, str(file))
    return file


def _refused(text: str) -> str:
    with pytest.raises(Refused) as refused:
        record.read(text)
    return str(refused.value)


def test_a_signed_record_is_read_with_its_key(key: Path) -> None:
    run, closing = record.read(Court().write_run(RUN, TODAY))
    assert run == RUN
    assert len(closing.signature) == 64


def test_an_edit_under_a_new_digest_is_seen_by_its_signature(key: Path) -> None:
    edited = Court().write_run(RUN, TODAY).replace('"outcome":"violated"', '"outcome":"holds"')
    assert "the footer belongs to other lines" in _refused(edited)
    assert "is not signed" in _refused(record.sealed_anew(edited))


def test_a_signature_of_another_key_is_refused(key: Path) -> None:
    text = Court().write_run(RUN, TODAY)
    key.write_bytes(b"another key of sixteen bytes or more")
    assert "is not signed with the key of this machine" in _refused(text)


def test_without_a_key_a_signed_record_is_read_as_any_other(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Court().write_run(RUN, TODAY)
    monkeypatch.delenv(record.KEY_FILE)
    assert record.read(text)[0] == RUN
    assert (
        record.read(record.sealed_anew(text.replace('"outcome":"violated"', '"outcome":"holds"')))[0].results[0].outcome
        == "holds"
    )


@pytest.mark.parametrize(("content", "says"), [(b"short", "holds 5 bytes"), (None, "cannot be read")])
def test_a_key_that_is_none_is_refused(key: Path, content: bytes | None, says: str) -> None:
    key.unlink() if content is None else key.write_bytes(content)
    with pytest.raises(Refused, match=says):
        Court().write_run(RUN, TODAY)


def test_a_record_that_was_cut_anywhere_is_refused() -> None:
    text = Court().write_run(RUN, TODAY)
    for end in range(len(text)):
        _refused(text[:end])


def test_what_came_in_of_a_run_is_never_more_than_incomplete() -> None:
    """Also where all that was planned holds, and only the footer is missing."""
    text = Court().write_run(recorded((A, "holds"), (B, "holds")), TODAY)
    seen = set()
    for end in range(len(text)):
        with contextlib.suppress(Refused):  # it has no plan yet
            part = record.read_part(text[:end])
            seen.add(len(part.results))
            judged = verdict(part, datetime.date.fromisoformat(TODAY))
            assert (judged.word, judged.faults[0].kind) == ("incomplete", "cut off")
    assert seen == {0, 1, 2}
    with pytest.raises(Refused, match="closes a run that is called unfinished"):
        record.read_part(text)
