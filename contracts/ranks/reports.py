"""Conversion between pytest's reports and posts."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.ranks.merge import Merged, Post

SECTION = 4_000  # characters of one captured stream that are sent
STRICT = "[XPASS(strict)] "


@dataclass(frozen=True)
class Words:
    """A failure as text. `reprcrash` is where pytest and JUnit look for the one line of a summary."""

    text: str
    crash: str
    path: str = ""
    line: int = 0
    reprcrash: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reprcrash", SimpleNamespace(message=self.crash, path=self.path, lineno=self.line))

    def toterminal(self, tw: Any) -> None:
        for line in self.text.splitlines():
            tw.line(line, red=line.startswith("E   "))

    def __str__(self) -> str:
        return self.text


def post_of(report: pytest.TestReport, rank: int, *, aborted: str, raised: bool, order: int) -> Post:
    """What this rank reports about a phase."""
    kind, reason, where = _kind(report)
    own = kind != "passed" and not aborted  # an aborted rank would only report its cut connection
    crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
    return Post(
        rank=rank,
        kind=kind,
        text=report.longreprtext if own and kind in ("failed", "xfailed") else "",
        crash=str(crash).partition("\n")[0],
        reason=reason,
        where=where,
        sections=tuple((name, text[-SECTION:]) for name, text in report.sections)
        if kind != "passed" and not aborted
        else (),
        properties=tuple(report.user_properties) if rank == 0 or kind != "passed" else (),
        aborted=aborted,
        raised=raised,
        order=order,
    )


def _kind(report: pytest.TestReport) -> tuple[str, str, tuple[str, int] | None]:
    if hasattr(report, "wasxfail"):
        return ("xfailed" if report.skipped else "xpassed"), str(report.wasxfail), None
    if report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(STRICT):
        return "xpassed", report.longrepr, None
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        return "skipped", reason, (str(path), int(line))
    return report.outcome, "", None


def rewrite(report: pytest.TestReport, merged: Merged, *, own: str, rank: int) -> None:
    """Make a report say what all ranks agreed on. `own` is this rank's own outcome; a report that agrees keeps pytest's
    own words, which have colours and links."""
    report.user_properties = list(merged.properties) if merged.kind != "passed" or rank else report.user_properties
    if merged.kind == "passed" or (own == merged.kind and merged.kind in ("skipped", "xpassed")):
        if merged.kind == "skipped":
            assert merged.where is not None
            report.longrepr = (*merged.where, merged.reason)
        return
    if hasattr(report, "wasxfail"):
        del report.wasxfail
    if merged.kind == "xfailed":
        report.outcome, report.wasxfail, report.longrepr = "skipped", merged.reason, None
        return
    report.outcome = "failed"
    path, line, _ = report.location
    report.longrepr = Words(  # type: ignore[assignment]  # by duck
        merged.text, merged.crash, path, (line or 0) + 1
    )
    report.sections = list(merged.sections)


def soften(report: pytest.TestReport, merged: Merged) -> None:
    """Do not count a teardown as a second failure if its test had poisoned the group."""
    report.outcome, report.longrepr = "passed", None
    report.sections.append(("teardown after the failure", merged.text))


def failure(item: pytest.Item, text: str, crash: str, properties: list[tuple[str, object]]) -> list[pytest.TestReport]:
    """The reports of a test whose ranks died before they could report: its call, and the teardown that JUnit needs."""
    path, line, _ = item.location
    words = Words(text, crash, path, (line or 0) + 1)
    common = {"nodeid": item.nodeid, "location": item.location, "keywords": {}, "user_properties": properties}
    return [
        pytest.TestReport(**common, outcome="failed", longrepr=words, when="call"),  # type: ignore[arg-type]
        pytest.TestReport(**common, outcome="passed", longrepr=None, when="teardown"),  # type: ignore[arg-type]
    ]


def words_of(report: pytest.TestReport) -> object:
    """A report's words as JSON."""
    if report.longrepr is None or isinstance(report.longrepr, tuple):
        return report.longrepr
    crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
    return {"text": report.longreprtext, "crash": str(crash)}


def from_words(plain: Any) -> Any:
    """The inverse of `words_of`."""
    if plain is None:
        return None
    return Words(plain["text"], plain["crash"]) if isinstance(plain, dict) else tuple(plain)
