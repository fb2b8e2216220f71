"""Words from outside the suite, made fit for a record or a report: without secrets, bounded, printable, and escaped
for the format they go into.

A stack's name, its errors and its answers may hold anything: colours, NUL, halves of surrogate pairs, `::error::`, a
Markdown heading, a password, 300 MB. `fit` is applied to all that is recorded, and to a run and its verdict before any
form is drawn, so a form meets only clean text. Only the format's own escaping remains: jinja2 and ElementTree escape
HTML and XML, `markdown`, `terminal` and `annotation` the rest.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from contracts.spec.redaction import redact

T = TypeVar("T")
LONGEST = 8_000
"""Characters of one text in a record or a report."""
MOST_LINES = 200
"""Lines of it. A quarter of either is kept of the end, where a traceback says what it is about."""

_MANY_LINES = frozenset({"words", "promise", "source", "reason"})
"""Fields that may hold several lines. All others are names and stay on one line."""

_OURS = frozenset({"id", "case", "outcome", "schema", "word", "fate", "kind", "digest", "started", "finished",
                   "expires", "bugs", "items", "outside", "promises", "layouts", "signature"})  # fmt: skip
"""Fields that the suite fills itself: they hold no secret, and must be read back as they were."""
_MARGIN = 8_000  # characters around a cut, in which a secret that stands across it is found before it is cut

# What XML 1.0 forbids, what moves a terminal's cursor, what no encoder takes, and what reverses the reading direction.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)
# GitHub reads `::name::` after any spaces at the start of a line, and `##[name]` anywhere in one; Azure and TeamCity
# read theirs likewise.
_COMMAND = re.compile(r"^([ \t]*)(?=::)|#(?=#(?:\[|vso\[|teamcity\[))", re.M)
_MARKUP = re.compile(r"[&<>`*|$~\\]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def cut(text: str, limit: int = LONGEST, lines: int = MOST_LINES) -> str:
    """The text if it has at most `limit` characters and `lines` lines, else its beginning and its end, and how long it
    was. A text that was cut is not cut again."""
    newlines = text.count("\n")
    if len(text) <= limit and newlines < lines:
        return text
    note = f"… {len(text)} characters, cut here …" if len(text) > limit else f"… {newlines + 1} lines, cut here …"
    begins = "\n".join(text[: limit - limit // 4 - len(note) - 2].split("\n")[: lines - lines // 4 - 1])
    ends = "\n".join(text[-(limit // 4) :].split("\n")[-(lines // 4) :])
    return f"{begins}\n{note}\n{ends}"


def plain(text: str) -> str:
    """The text with every character that is not printable as its escape: `\\x1b`, `\\ud800`. Newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`plain`, with newlines and tabs as escapes too."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def fit(value: T, known: frozenset[str] = frozenset()) -> T:
    """A record, or any part of one, with each of its texts redacted, cut and plain; a field that holds a name is one
    line. `known` are secrets that are redacted wherever they stand."""
    return cast(T, _fit(value, known, many=False))


def words(text: str, known: frozenset[str] = frozenset()) -> str:
    """`fit` of a text of several lines."""
    return cast(str, _fit(text, known, many=True))


def harmless(text: str) -> str:
    """Lines of which a CI takes none for a command."""
    return _COMMAND.sub(lambda found: f"{found[0]}\\", text)


def markdown(text: str) -> str:
    """Words inside a line of Markdown, or inside a cell of a table: shown as they are, on one line."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", " / ".join(plain(text).splitlines()))


def terminal(text: str) -> str:
    """Lines for a terminal or a CI's log, after they were wrapped: none moves the cursor or is a command to the CI."""
    return harmless(plain(text))


def annotation(text: str) -> str:
    """The message of a GitHub annotation: `::error::` and then this."""
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def annotation_property(text: str) -> str:
    """A property of a GitHub annotation, such as `title` or `file`."""
    return annotation(text).replace(":", "%3A").replace(",", "%2C")


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _fit(value: Any, known: frozenset[str], *, many: bool, ours: bool = False) -> Any:
    if isinstance(value, str):
        return (_short_text if len(value) <= _SHORT else _text)(value, known, many, ours)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        clean = {name: _fit(each, known, many=name in _MANY_LINES, ours=name in _OURS) for name, each in held.items()}
        changed = {name: each for name, each in clean.items() if each is not held[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        return {
            _fit(key, known, many=False, ours=ours): _fit(each, known, many=many, ours=ours)
            for key, each in value.items()
        }
    if isinstance(value, (tuple, frozenset)):
        return type(value)(_fit(each, known, many=many, ours=ours) for each in value)
    return value


def _text(value: str, known: frozenset[str], many: bool, ours: bool) -> str:
    text = cut(value if ours else _without_secrets(value, known))
    return harmless(plain(text) if many else one_line(text))


_SHORT = 1_000  # characters
_short_text = functools.lru_cache(maxsize=32_768)(_text)
"""The items of a run say the same few things, and its verdict says them again: each is looked through once."""


def _without_secrets(text: str, known: frozenset[str]) -> str:
    """The text redacted, where it is long only near the ends that will be kept of it."""
    if len(text) <= 2 * (LONGEST + _MARGIN):
        return redact(text, known)
    begins, ends = redact(text[: LONGEST + _MARGIN], known), redact(text[-LONGEST - _MARGIN :], known)
    return f"{begins}{text[LONGEST + _MARGIN : -LONGEST - _MARGIN]}{ends}"
