"""A record is sealed: by its digest against accidents, by a key against whoever can write a new digest."""

import contextlib
import datetime
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from contracts.court import record
from contracts.court.verdict import verdict
from contracts.spec import Refused
from contracts.spec.records import SCHEMA, Footer, Run
from tests_unit.gate._recorded_run import TODAY, A, B, declared, recorded

RUN = recorded((A, "violated"), (B, "holds"))
DAY = datetime.date.fromisoformat(TODAY)


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
    run, closing = record.read(record.write(RUN, DAY))
    assert run == RUN
    assert len(closing.signature) == 64


def test_a_signature_reveals_an_edit_whose_digest_was_recomputed(key: Path) -> None:
    edited = record.write(RUN, DAY).replace('"outcome":"violated"', '"outcome":"holds"')
    assert "the footer belongs to other lines" in _refused(edited)
    assert "is not signed" in _refused(record.sealed_anew(edited))


def test_a_signature_of_another_key_is_refused(key: Path) -> None:
    text = record.write(RUN, DAY)
    key.write_bytes(b"another key of sixteen bytes or more")
    assert "is not signed with the key of this machine" in _refused(text)


def test_without_a_key_a_signed_record_is_read_as_any_other(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = record.write(RUN, DAY)
    monkeypatch.delenv(record.KEY_FILE)
    assert record.read(text)[0] == RUN
    assert (
        record.read(record.sealed_anew(text.replace('"outcome":"violated"', '"outcome":"holds"')))[0].results[0].outcome
        == "holds"
    )


@pytest.mark.parametrize(("content", "says"), [(b"short", "holds 5 bytes"), (None, "cannot be read")])
def test_a_missing_or_malformed_record_key_is_refused(key: Path, content: bytes | None, says: str) -> None:
    key.unlink() if content is None else key.write_bytes(content)
    with pytest.raises(Refused, match=says):
        record.write(RUN, DAY)


def test_a_record_that_was_cut_anywhere_is_refused() -> None:
    text = record.write(RUN, DAY)
    for end in range(len(text)):
        _refused(text[:end])


def test_a_truncated_record_is_never_conformant() -> None:
    """Also where all that was planned holds, and only the footer is missing."""
    text = record.write(recorded((A, "holds"), (B, "holds")), DAY)
    seen = set()
    for end in range(len(text)):
        with contextlib.suppress(Refused):  # it has no plan yet
            part = record.read_part(text[:end])
            seen.add(len(part.results))
            judged = verdict(part, DAY)
            assert (judged.word, judged.faults[0].kind) == ("incomplete", "cut off")
    assert seen == {0, 1, 2}
    with pytest.raises(Refused, match="closes a run that is called unfinished"):
        record.read_part(text)


def changed(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


DAMAGE: Mapping[str, Callable[[str], str]] = {
    "no footer": lambda text: text[: text.rindex('{"footer"')],
    "cut in a line": lambda text: text[:-9],
    "a result is gone": lambda text: re.sub(r'.*"pp2-ep2","outcome".*\n', "", text),
    "a deviation is gone": lambda text: re.sub(r'(?m)^{"deviation".*\n', "", text),
    "a smaller plan": changed('{"id":"TOPO-02","case":"pp2-ep2"}', '{"id":"TOPO-02","case":"pp2-tp2"}'),
    "another outcome": changed('"outcome":"violated"', '"outcome":"deviates"'),
    "another verdict": changed('"word":"conformant","exit_code":0', '"word":"violated","exit_code":1'),
    "a key twice": changed('"outcome":"violated"', '"outcome":"violated","outcome":"holds"'),
    "two in one": lambda text: text + text,
    "another schema": changed(SCHEMA, "rankproof.run/0"),
    "an unknown field": changed('"outcome":"holds"', '"outcome":"holds","score":1'),
    "empty": lambda text: "",
}
DAMAGED = record.write(recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)), DAY)


def refuses(read: Callable[[str], object], damage: str) -> None:
    damaged = DAMAGE[damage](DAMAGED)
    assert damaged != DAMAGED, f"{damage} changes nothing"
    with pytest.raises(Refused):
        read(damaged)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_refused(damage: str) -> None:
    refuses(record.read, damage)


def closes_it(text: str) -> tuple[Run, Footer]:
    """Reads a record without a footer as a smaller one."""
    results = sum(line.startswith('{"result"') for line in text.splitlines())
    footer = Footer(digest="", results=results, word="conformant", exit_code=0, finished="2026-06-15T00:00:00+00:00")
    return record.read(f"{text}{record.line(record.sealed(footer, record.digest(text)))}\n")


def trusts_the_footer(text: str) -> tuple[Run, Footer]:
    """Reads a record whose footer is not of its lines."""
    return record.read(record.sealed_anew(text))


@pytest.mark.parametrize(
    ("read", "damage"),
    [(closes_it, "no footer"), (trusts_the_footer, "another outcome"), (trusts_the_footer, "another verdict")],
)
def test_the_test_of_damaged_records_fails_for_a_reader_that_accepts_them(
    read: Callable[[str], object], damage: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        refuses(read, damage)
