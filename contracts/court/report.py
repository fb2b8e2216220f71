"""A verdict as a person or a machine reads it. All forms are drawn from the one verdict; none decides anything.

People read causes: results that say the same are shown once, with their items; what holds is a count. JSON, JUnit and
HTML list every planned item, because counts by themselves cannot be audited, and so does the terminal with `verbose`.
"""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping

from contracts.court import sources
from contracts.court.baseline import change
from contracts.court.causes import DETAILED, HEADINGS, Cause, by_outcome, causes
from contracts.court.ci_forms import check_run, code_quality, github, junit, sarif
from contracts.court.comment import comment
from contracts.court.html_report import page
from contracts.court.markdown_report import summary
from contracts.court.plain_text import fit, terminal
from contracts.court.wording import (
    answered_by,
    by_id,
    counted,
    details,
    device_line,
    families,
    headline,
    items,
    judged_code,
    kill_line,
    law_lines,
    rerun,
)
from contracts.spec import codec
from contracts.spec.records import FORMS, Form, Outcome, Run, Verdict
from contracts.spec.redaction import secrets_here

__all__ = ["FILES", "WIDTH", "details", "files", "headline", "kill_line", "render", "rerun"]

WIDTH = 120
FILES: Mapping[str, Form] = {
    "junit.xml": "junit",
    "summary.md": "markdown",
    "report.html": "html",
    "verdict.json": "json",
    "annotations.txt": "annotations",
    "results.sarif": "sarif",
}
"""The files that a report folder holds beside the record."""

_IN_FULL = 2  # causes of each red outcome whose contract, source and command a terminal shows
_IN_SHORT = 5  # further ones, in two lines
_REASONS = 4  # of what was not run or not offered
_FAULTS = 6
_ITEMS = 6  # of a cause that are named


def render(run: Run, verdict: Verdict, form: Form, verbose: bool = False, width: int = WIDTH) -> str:
    """The verdict on a run in one form. The terminal shows the largest causes and counts the rest; with `verbose` it
    shows every cause, with every item, and every id that the profile leaves outside.

    Whatever stands in the run, each form is well-formed: `fit` comes before, the format's own escapes after.
    """
    known = secrets_here(os.environ, sys.argv)
    run, verdict = fit(run, known), fit(verdict, known)
    return terminal(_terminal(run, verdict, verbose, width)) if form == "terminal" else _FORMS[form](run, verdict)


def files(run: Run, verdict: Verdict) -> dict[str, str]:
    """The text of every file of a report folder, by its name."""
    known = secrets_here(os.environ, sys.argv)
    run, verdict = fit(run, known), fit(verdict, known)
    return {name: _FORMS[form](run, verdict) for name, form in FILES.items()}


def _terminal(run: Run, verdict: Verdict, verbose: bool, width: int) -> str:
    """Worst last, next to the verdict, which is the last line."""
    found = by_outcome(causes(run, verdict.results))
    held = [result for result in verdict.results if result.outcome == "holds"]
    lines = _wrapped(f"Holds: {len(held)} ({families(r.id for r in held)})", width, 2) if held else []
    if verbose:
        for id, group in by_id(held):
            lines += _wrapped(f"  {id}  {', '.join(result.case for result in group if result.case)}", width)
    for outcome in reversed(tuple(HEADINGS)):
        lines += _section(run, outcome, found.get(outcome, []), verbose, width)
    if (compared := change(run, verdict)) is not None:
        lines += _wrapped(compared.headline, width)
        for word, named in compared.told(len(verdict.results) if verbose else _ITEMS):
            lines += _wrapped(f"  {word:<7} {named}", width, hang=8)
    if run.kills:
        lines.append(kill_line(run))
    lines += [line for each in judged_code(run) for line in _wrapped(f"Judged: {each}", width, None if verbose else 2)]
    lines += filter(None, [device_line(run)])
    if run.header.subject.conventions:
        told = ", ".join(f"{name} {choice}" for name, choice in run.header.subject.conventions.items())
        lines += _wrapped(f"Conventions that the stack declares: {told}", width)
    lines += [
        line for each in law_lines(run, verdict, None if verbose else _FAULTS) for line in _wrapped(each, width, 3)
    ]
    if run.header.changed:
        lines.append(f"Order: {run.header.changed}")
    if run.header.proof:
        lines.append(f"Self-test given: {run.header.proof}")
    shown = len(verdict.faults) if verbose else _FAULTS
    lines += [line for each in verdict.faults[:shown] for line in _wrapped(f"fault ({each.kind}): {each.words}", width)]
    lines += _left(len(verdict.faults) - shown, "fault")
    if verbose or len(run.unclaimed) == 1:
        lines += [f"works, but is not in offers: {each.question} ({each.evidence})" for each in run.unclaimed]
    elif run.unclaimed:
        lines += _wrapped("works, but is not in offers: " + ", ".join(each.question for each in run.unclaimed), width)
    if run.plan.outside:
        lines.append(f"Outside the profile {verdict.profile}: {len(run.plan.outside)}")
        told = " ".join(run.plan.outside) if verbose else f"{families(run.plan.outside)} (--verbose lists them)"
        lines += _wrapped(f"  {told}", width)
    return "\n".join([*lines, headline(verdict)]) + "\n"


def _section(run: Run, outcome: Outcome, found: list[Cause], verbose: bool, width: int) -> list[str]:
    """The causes of one outcome."""
    if not found:
        return []
    red = outcome in ("violated", "broken")
    number = sum(len(cause.results) for cause in found)
    folded = f" ({counted(len(found), 'cause' if outcome in DETAILED - {'not run'} else 'reason')})"
    lines = _wrapped(f"{HEADINGS[outcome]}: {number}{folded if len(found) < number else ''}", width)
    full = len(found) if verbose else _IN_FULL if outcome in DETAILED else 0
    shown = len(found) if verbose else full + _IN_SHORT if red else _REASONS
    for rank, cause in enumerate(found[:shown]):
        if rank < full and outcome in DETAILED and (red or verbose):
            lines += _in_full(run, cause, verbose, width)
        else:
            lines += _in_short(run, cause, verbose, width)
    return lines + _left(len(found) - shown, "cause" if outcome in DETAILED else "reason")


def _in_full(run: Run, cause: Cause, verbose: bool, width: int) -> list[str]:
    first = cause.results[0]
    lines = _wrapped(f"  {_named(cause, verbose)}", width, None if verbose else 2)
    told = details(run, first)
    column = max(len(label) for label, _ in told) + 1
    for label, words in told:
        limit = None if verbose else 5 if label == "got" else 2
        # A command is one line, so that it can be copied.
        text = [words] if label in ("rerun", "explain") else _wrapped(words, width - column - 5, limit, hang=0)
        lines += [f"    {label if number == 0 else '':<{column}} {line}" for number, line in enumerate(text or [""])]
    return lines


def _in_short(run: Run, cause: Cause, verbose: bool, width: int) -> list[str]:
    limit = None if verbose else 2
    if cause.outcome in ("violated", "broken"):
        first = cause.results[0]
        said = [*_wrapped(cause.words, width - 6, limit, hang=0), *(f"{q} {a}" for q, a in answered_by(run, first)[:1])]
        return [*_wrapped(f"  {_named(cause, verbose)}", width, limit and 1), *(f"      {line}" for line in said)]
    number = len(cause.results)
    few = number <= _ITEMS and cause.outcome in ("not run", "untested", "deviates")
    named = items(cause) if verbose or few or number == 1 else families(r.id for r in cause.results)
    return _wrapped(f"  {number:>4}  {' '.join(cause.words.split())}  ({named})", width, limit, hang=8)


def _named(cause: Cause, verbose: bool) -> str:
    named = items(cause, None if verbose else _ITEMS)
    return named if len(cause.results) == 1 else f"{len(cause.results)} items: {named}"


def _left(number: int, thing: str) -> list[str]:
    return [f"  … and {counted(number, thing)} more (--verbose, or report.html)"] if number > 0 else []


def _wrapped(text: str, width: int, limit: int | None = None, hang: int = 4) -> list[str]:
    """Text in lines of a width, its own lines kept; a hanging indent; what is over the limit is left out with an
    ellipsis."""
    lines: list[str] = []
    for line in text.splitlines():
        start = " " * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line.lstrip(), max(width, 40), subsequent_indent=start + " " * hang, initial_indent=start,
            break_on_hyphens=False, break_long_words=False,
        ) or [""]  # fmt: skip
        if limit is not None and len(lines) > limit:
            last = lines[limit - 1]
            return [*lines[: limit - 1], f"{last[: max(width, 40) - 2]} …"]
    return lines


def _json(run: Run, verdict: Verdict) -> str:
    found = causes(run, verdict.results)
    body = codec.encode(verdict) | {"exit_code": verdict.exit_code, "headline": headline(verdict)}
    body["causes"] = [
        {"outcome": cause.outcome, "questions": list(cause.questions), "words": cause.words,
         "items": [str(result.item) for result in cause.results], "rerun": rerun(run, cause.results[0])}
        for cause in found
    ]  # fmt: skip
    if (compared := change(run, verdict)) is not None:
        body["compared"] = {
            "of": compared.of, "new": [str(each.item) for each in compared.new], "fixed": compared.fixed,
            "lost": dict(compared.lost), "slower": {str(each.item): before for each, before in compared.slower},
        }  # fmt: skip
    shown = dict.fromkeys(result.id for result in verdict.results if result.outcome in DETAILED)
    stated = {id: run.plan.promises[id] for id in shown if id in run.plan.promises}
    body["contracts"] = {
        id: {"statement": each.promise, "source": sources.explained(each.source)} for id, each in stated.items()
    }
    body |= {"outside": list(run.plan.outside), "proof": run.header.proof, "law": run.plan.law}
    body["answering"] = [codec.encode(each) for each in run.header.subject.answering]
    body |= {"device": run.header.device, "backend": run.header.backend}
    body["conventions"] = dict(run.header.subject.conventions)
    body |= {"gone": list(run.plan.gone), "reworded": list(run.plan.reworded)} if run.plan.law else {}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


_FORMS: Mapping[Form, Callable[[Run, Verdict], str]] = {
    "markdown": summary,
    "junit": junit,
    "html": page,
    "json": _json,
    "annotations": github,
    "sarif": sarif,
    "comment": comment,
    "check-run": check_run,
    "code-quality": code_quality,
}
assert {*_FORMS, "terminal"} == {*FORMS}
