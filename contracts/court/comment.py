"""The verdict as one comment on a pull request: what is new and what is mended, with values and places.

The first line is a mark, the same for every run of a stack by a profile on as many ranks: whoever posts the comment
finds by it the one of the run before, and writes over it.
"""

import hashlib

from contracts.court.baseline import change
from contracts.court.causes import HEADINGS, Cause, by_outcome, causes
from contracts.court.plain_text import markdown
from contracts.court.wording import counted, headline, items, judged_code, place, rerun
from contracts.spec.records import Outcome, Run, Verdict

RED: tuple[Outcome, ...] = ("violated", "broken")
_CAUSES = 8
_ITEMS = 4  # of a cause
_NAMED = 20  # of what is mended or lost


def comment(run: Run, verdict: Verdict) -> str:
    """The comment, a screen long whatever is wrong."""
    compared = change(run, verdict)
    everything = by_outcome(causes(run, verdict.results))
    new = by_outcome(causes(run, verdict.results if compared is None else compared.new))
    found = [cause for outcome in RED for cause in new.get(outcome, ())]
    of = run.header
    mark = hashlib.sha256("\0".join((of.subject.origin, of.profile, str(of.ranks))).encode()).hexdigest()[:16]
    lines = [f"<!-- rankproof {mark} -->", f"### {markdown(headline(verdict))}", ""]
    lines += [f"Judged: {markdown(each)}\n" for each in judged_code(run)]
    lines += [f"{markdown(fault.kind)}: {markdown(fault.words)}\n" for fault in verdict.faults[:_CAUSES]]
    if found:
        lines.append(f"**{'New' if compared else 'Red'}: {counted(len(found), 'cause')}**\n")
    lines += [line for cause in found[:_CAUSES] for line in _cause(run, cause)]
    if len(found) > _CAUSES:
        lines.append(f"- and {counted(len(found) - _CAUSES, 'cause')} more")
    for outcome in ("not run", "deviates", "untested"):
        if named := " ".join(items(each, _ITEMS) for each in everything.get(outcome, ())[:_CAUSES]):
            lines.append(f"\n**{HEADINGS[outcome]}**: {markdown(named)}")
    lines += [f"\n**Unfit**: {markdown(f'{each.id}: {each.words}')}" for each in run.unfit[:_CAUSES]]
    if compared is not None:
        told = [f"**{word.capitalize()}**: {markdown(named)}" for word, named in compared.told(_NAMED) if word != "new"]
        lines += ["", f"{markdown(compared.headline)}.", *(f"\n{each}" for each in told)]
    return "\n".join(lines) + "\n"


def _cause(run: Run, cause: Cause) -> list[str]:
    """Its items, what was seen, where the code stands that answered, and the command that shows it again."""
    first = cause.results[0]
    at = place(run, first)
    where = f" at {markdown(f'{at[0]}:{at[1]}')}" if at else ""
    return [
        f"- {markdown(items(cause, _ITEMS))}{where}: {markdown(cause.words)}",
        f"  <code>{markdown(rerun(run, first))}</code>",
    ]
