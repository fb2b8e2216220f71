"""The verdict as Markdown, for a step summary: causes with their items, and what holds as a count.

GitHub refuses a summary above 1,024 KiB as a whole, which would hide just the run in which everything is red. The text
never exceeds `LIMIT`; what is left out is counted.
"""

from collections import Counter

from contracts.court.baseline import change
from contracts.court.causes import DETAILED, HEADINGS, Cause, by_outcome, causes
from contracts.court.plain_text import cut, markdown
from contracts.court.wording import (
    counted,
    details,
    device_line,
    families,
    family_of,
    headline,
    items,
    judged_code,
    kill_line,
    law_lines,
)
from contracts.spec.records import OUTCOMES, Run, Verdict

LIMIT = 900 * 1024
"""Bytes of UTF-8."""
_LONGEST_WORDS = 2000  # characters of one cause
_ITEMS = 400  # of a cause that are named
_CLOSING = 2000  # bytes that are kept free for what was left out


def summary(run: Run, verdict: Verdict) -> str:
    """The summary of a run, of at most `LIMIT` bytes."""
    kept: list[str] = []
    size = 0
    blocks = _blocks(run, verdict)
    for number, block in enumerate(blocks):
        size += len(block.encode()) + 1
        if size > LIMIT - _CLOSING:
            left = f"… {counted(len(blocks) - number, 'part')} more, left out here; `report.html` has all of it."
            return "\n".join([*kept, "", left]) + "\n"
        kept.append(block)
    return "\n".join(kept) + "\n"


def _blocks(run: Run, verdict: Verdict) -> list[str]:
    blocks = [f"## {markdown(headline(verdict))}", "", *_matrix(verdict)]
    declared = run.header.subject.conventions
    if declared:
        rows = [f"| {markdown(name)} | {markdown(choice)} |" for name, choice in declared.items()]
        blocks += ["", "### Conventions that the stack declares", "", "| convention | choice |", "|---|---|", *rows]
    blocks += [line for each in judged_code(run) for line in ("", f"Judged: {markdown(each)}")]
    blocks += ["", markdown(device_line(run))] if device_line(run) else []
    if run.header.proof:
        blocks += ["", f"Self-test given: {markdown(run.header.proof)}"]
    if (compared := change(run, verdict)) is not None:
        told = [f"- **{word}**: {markdown(named)}" for word, named in compared.told(_ITEMS)]
        blocks += ["", f"### {markdown(compared.headline)}", "", *told]
    if run.plan.law:
        lines = law_lines(run, verdict)
        blocks += [
            "",
            f"### {markdown(lines[0])}",
            "",
            *(f"- {markdown(cut(each, _LONGEST_WORDS))}" for each in lines[1:]),
        ]
    if verdict.faults:
        told = [f"- {fault.kind}: {markdown(cut(fault.words, _LONGEST_WORDS))}" for fault in verdict.faults]
        blocks += ["", "### Faults of the run", "", *told]
    for outcome, found in by_outcome(causes(run, verdict.results)).items():
        number = counted(sum(len(cause.results) for cause in found), "item")
        folded = counted(len(found), "cause" if outcome in DETAILED - {"not run"} else "reason")
        blocks += ["", f"### {HEADINGS[outcome]}: {number}, {folded}", ""]
        blocks += [_cause(run, cause) for cause in found]
    held = [result.id for result in verdict.results if result.outcome == "holds"]
    if held:
        blocks += ["", f"### {HEADINGS['holds']}: {len(held)}", "", families(held)]
    if run.kills:
        blocks += ["", f"### {kill_line(run)}"]
        alive = [kill for kill in run.kills if kill.fate != "killed"]
        if alive:
            blocks += ["", "| contract | case | mutant | fate |", "|---|---|---|---|"]
            blocks += [f"| {' | '.join(map(markdown, (k.of, k.case, k.mutant, k.fate)))} |" for k in alive]
    if run.unclaimed:
        told = [f"- {markdown(f'{each.question}: {each.evidence}')}" for each in run.unclaimed]
        blocks += ["", "### Works, but is not in offers", "", *told]
    if run.plan.outside:
        title = f"### Outside the profile {markdown(verdict.profile)}: {len(run.plan.outside)}"
        blocks += ["", title, "", _folded(families(run.plan.outside), markdown(" ".join(run.plan.outside)))]
    return blocks


def _matrix(verdict: Verdict) -> list[str]:
    """Family × outcome; the families in which everything holds are one row."""
    counts = Counter((family_of(result.id), result.outcome) for result in verdict.results)
    seen = list(dict.fromkeys(family_of(result.id) for result in verdict.results))
    green = [each for each in seen if all(outcome == "holds" for family, outcome in counts if family == each)]
    shown = [outcome for outcome in OUTCOMES if verdict.counts[outcome]]
    rows = [(markdown(each), {o: counts[each, o] for o in shown}) for each in seen if each not in green]
    if green:
        rows.append((", ".join(map(markdown, green)), {"holds": sum(counts[each, "holds"] for each in green)}))
    rows.append(("**all**", {outcome: verdict.counts[outcome] for outcome in shown}))
    head = ["| family |" + "".join(f" {outcome} |" for outcome in shown), "|---|" + "--:|" * len(shown)]
    return head + [f"| {name} |" + "".join(f" {row.get(o) or ''} |" for o in shown) for name, row in rows]


def _cause(run: Run, cause: Cause) -> str:
    number = len(cause.results)
    named = markdown(items(cause, _ITEMS))
    if cause.outcome not in DETAILED or cause.outcome == "not run":
        words = markdown(cut(cause.words, _LONGEST_WORDS))
        rerun = dict(details(run, cause.results[0]))["rerun"]
        told = f"- **{number}** × {words}" if number > 1 else f"- {words}"
        lines = [told, f"  {_folded(families(r.id for r in cause.results), named) if number > 1 else named}"]
        return "\n".join(lines + ([f"  - rerun: {markdown(rerun)}"] if cause.outcome == "not run" else []))
    first, *others = (str(result.item) for result in cause.results)
    lines = [f"- **{markdown(first)}**" + (f" and {len(others)} more" if others else "")]
    lines += [f"  - {label}: {markdown(cut(text, _LONGEST_WORDS))}" for label, text in details(run, cause.results[0])]
    return "\n".join([*lines, f"  - {_folded(f'all {number} items', named)}"] if others else lines)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>{text}</details>"
