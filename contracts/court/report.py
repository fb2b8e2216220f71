"""A verdict as a person or a machine reads it. All five forms are drawn from the one verdict; none decides anything.

Every form lists every planned id: what holds as well as what did not run, because counts alone cannot be audited. The
terminal counts by family what the profile leaves outside; the other forms list it.
"""

from __future__ import annotations

import io
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from contracts.contract import LAW
from contracts.court import sources
from contracts.court.plain_text import fit, markdown, terminal
from contracts.spec import codec
from contracts.spec.records import OUTCOMES, Form, Item, Outcome, Result, Run, Verdict

HEADINGS: Mapping[Outcome, str] = {
    "violated": "Violated",
    "broken": "Broken (the suite or the adapter failed; this says nothing about the contract)",
    "not run": "Not run",
    "deviates": "Deviates, as declared",
    "untested": "Untested (no check exists yet)",
    "not offered": "Not offered by this stack",
    "holds": "Holds",
}
_DETAILED: frozenset[Outcome] = frozenset({"violated", "broken", "not run", "deviates"})


def render(run: Run, verdict: Verdict, form: Form, verbose: bool = False) -> str:
    """The verdict on a run in one form. With `verbose` the terminal lists the ids that the profile leaves outside;
    without it, it counts them.

    Whatever stands in the run, each form is well-formed: `fit` comes before, the format's own escapes after.
    """
    run, verdict = fit(run), fit(verdict)
    if form == "terminal":
        return terminal(_terminal(run, verdict, verbose))
    return _FORMS[form](run, verdict)


def headline(verdict: Verdict) -> str:
    """The verdict in one line: the stack, the profile, and the number of each outcome."""
    counts = ", ".join(f"{verdict.counts[outcome]} {outcome}" for outcome in OUTCOMES if verdict.counts[outcome])
    faults = f", {len(verdict.faults)} faults of the run" if verdict.faults else ""
    told = f"{verdict.word.upper()}: {verdict.subject}, profile {verdict.profile} ({counts or 'no result'}{faults})"
    if not verdict.unfit:
        return told
    number = "1 contract is" if len(verdict.unfit) == 1 else f"{len(verdict.unfit)} contracts are"
    return f"{told}; {number} unfit: {', '.join(verdict.unfit)}"


def rerun(run: Run, item: Item) -> str:
    """The command that judges one item again."""
    words = ["rankproof", "check", "--stack", run.header.subject.origin, "--profile", str(item)]
    contract = LAW.contracts.get(item.id)  # None where a record is read without the contracts
    if contract is not None and contract.tier == "dist":
        words += ["--ranks", str(max(2, contract.ranks(item.case)))]
    return shlex.join(words)


def kill_line(run: Run) -> str:
    """How the suite fared against its own mutants, in one line."""
    fates = Counter(kill.fate for kill in run.kills)
    told = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    return f"Self-test of the suite: {len(run.kills)} mutants ({told})"


def details(run: Run, result: Result) -> list[tuple[str, str]]:
    """What a reader needs about one result: the values, the contract's statement and source, how to see it again."""
    statement = run.plan.promises.get(result.id)
    found = [("got", result.words)]
    if result.rank is not None:
        found.append(("first rank", str(result.rank)))
    if statement is not None:
        found += [("contract", statement.promise), ("source", "\n".join(sources.explained(statement.source)))]
    found += [(f"{question} by", answer) for question, answer in result.answered.items()]
    return [*found, ("rerun", rerun(run, result.item)), ("explain", f"rankproof explain {result.id}")]


def by_outcome(verdict: Verdict) -> list[tuple[Outcome, list[Result]]]:
    """The results under each heading, in reading order, empty headings left out."""
    grouped = ((outcome, [r for r in verdict.results if r.outcome == outcome]) for outcome in HEADINGS)
    return [(outcome, results) for outcome, results in grouped if results]


def by_id(results: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    """Results of one contract together, in plan order."""
    return [(id, list(group)) for id, group in groupby(results, key=lambda result: result.id)]


def _cases(results: list[Result]) -> str:
    return ", ".join(result.case for result in results if result.case)


def families(ids: Iterable[str]) -> str:
    """How many of each family, in the order of the plan: `PAT 24, NAME 16`. A single case counts as one."""
    return ", ".join(f"{family} {count}" for family, count in Counter(id.partition("-")[0] for id in ids).items())


def _terminal(run: Run, verdict: Verdict, verbose: bool = False) -> str:
    # rich takes 60 ms to import; a run that only writes JSON does not pay for it.
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    text = io.StringIO()
    console = Console(file=text, width=120, color_system=None, legacy_windows=False)
    for outcome, results in reversed(by_outcome(verdict)):
        console.print(Text(f"{HEADINGS[outcome]}: {len(results)}"))
        if outcome in _DETAILED:
            for result in results:
                console.print(Text(f"  {result.item}"))
                table = Table.grid(padding=(0, 2))
                for label, words in details(run, result):
                    table.add_row(Text(label), Text(words))
                console.print(Padding(table, (0, 0, 0, 4)))
            continue
        for id, group in by_id(results):
            reason = group[0].words if outcome != "holds" else ""
            words = f"{id}  {_cases(group)}" + (f"  ({reason})" if reason else "")
            console.print(Padding(Text(words), (0, 0, 0, 2)))
    if run.kills:
        console.print(Text(kill_line(run)))
    if run.header.proof:
        console.print(Text(f"Self-test given: {run.header.proof}"))
    for fault in verdict.faults:
        console.print(Text(f"fault ({fault.kind}): {fault.words}".replace("\n", "\n  ")))
    for each in run.unclaimed:
        console.print(Text(f"works and is not claimed: {each.question} ({each.evidence})"))
    if run.plan.outside:
        console.print(Text(f"Outside the profile {verdict.profile}: {len(run.plan.outside)}"))
        told = " ".join(run.plan.outside) if verbose else f"{families(run.plan.outside)} (--verbose lists them)"
        console.print(Padding(Text(told), (0, 0, 0, 2)))
    text.write(f"{headline(verdict)}\n")
    return text.getvalue()


def _markdown(run: Run, verdict: Verdict) -> str:
    lines = [f"## {markdown(headline(verdict))}", ""]
    lines += ["| outcome | items |", "|---|---|"]
    lines += [f"| {outcome} | {verdict.counts[outcome]} |" for outcome in OUTCOMES]
    if run.header.proof:
        lines += ["", f"Self-test given: {markdown(run.header.proof)}"]
    if verdict.faults:
        lines += [
            "",
            "### Faults of the run",
            *(f"- {fault.kind}: {markdown(fault.words)}" for fault in verdict.faults),
        ]
    for outcome, results in by_outcome(verdict):
        lines += ["", f"### {HEADINGS[outcome]}", ""]
        if outcome in _DETAILED:
            for result in results:
                lines.append(f"- **{markdown(str(result.item))}**")
                lines += [f"  - {label}: {markdown(text)}" for label, text in details(run, result)]
            continue
        for id, group in by_id(results):
            reason = f": {markdown(group[0].words)}" if outcome != "holds" and group[0].words else ""
            lines.append(f"- {markdown(f'{id} {_cases(group)}')}{reason}")
    if run.kills:
        lines += ["", f"### {kill_line(run)}", "", "| contract | case | mutant | fate |", "|---|---|---|---|"]
        lines += [
            f"| {' | '.join(map(markdown, (kill.of, kill.case, kill.mutant, kill.fate)))} |" for kill in run.kills
        ]
    if run.unclaimed:
        lines += [
            "",
            "### Works and is not claimed",
            *(f"- {markdown(f'{each.question}: {each.evidence}')}" for each in run.unclaimed),
        ]
    if run.plan.outside:
        lines += ["", f"### Outside the profile {markdown(verdict.profile)}", "", markdown(" ".join(run.plan.outside))]
    return "\n".join(lines) + "\n"


def _junit(run: Run, verdict: Verdict) -> str:
    """JUnit knows pass, failure, error and skip. The verdict is a test case of its own, so that a run which is
    incomplete, and has only skips to show for it, is red there too."""
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite(f"rankproof {verdict.subject} {verdict.profile}")
    suite.add_property("verdict", verdict.word)
    suite.add_property("exit_code", str(verdict.exit_code))
    if run.header.proof:
        suite.add_property("self-test given", run.header.proof)
    cases = []
    for result in verdict.results:
        case = TestCase(name=str(result.item), classname=f"{run.header.subject.name}.{result.id}", time=result.seconds)
        text = "\n".join(f"{label}: {words}" for label, words in details(run, result))
        if result.outcome == "violated":
            case.result = [_told(Failure(_first(result.words), "violated"), text)]
        elif result.outcome == "broken":
            case.result = [_told(Error(_first(result.words), "broken"), text)]
        elif result.outcome != "holds":
            case.result = [Skipped(f"{result.outcome}: {_first(result.words)}", result.outcome)]
        cases.append(case)
    closing = TestCase(name="verdict", classname=f"{run.header.subject.name}.rankproof", time=0)
    if verdict.exit_code:
        words = "\n".join([headline(verdict), *(f"{fault.kind}: {fault.words}" for fault in verdict.faults)])
        closing.result = [_told(Failure(headline(verdict), verdict.word), words)]
    suite.add_testcases([*cases, closing])  # at once: every addition counts the whole suite anew
    xml = JUnitXml()
    xml.add_testsuite(suite)
    buffer = io.BytesIO()
    xml.write(buffer)
    return buffer.getvalue().decode()


def _first(words: str) -> str:
    return words.split("\n", 1)[0]


def _told(element: Any, text: str) -> Any:
    element.text = text
    return element


def _html(run: Run, verdict: Verdict) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("contracts.court", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        run=run,
        verdict=verdict,
        headline=headline(verdict),
        headings=HEADINGS,
        sections=[(outcome, by_id(results)) for outcome, results in by_outcome(verdict)],
        details=lambda result: details(run, result),
        detailed=_DETAILED,
        cases=_cases,
        kill_line=kill_line(run),
    )


def _json(run: Run, verdict: Verdict) -> str:
    body = codec.encode(verdict) | {"exit_code": verdict.exit_code, "headline": headline(verdict)}
    shown = dict.fromkeys(result.id for result in verdict.results if result.outcome in _DETAILED)
    stated = {id: run.plan.promises[id] for id in shown if id in run.plan.promises}
    body["contracts"] = {
        id: {"statement": each.promise, "source": sources.explained(each.source)} for id, each in stated.items()
    }
    body |= {"outside": list(run.plan.outside), "proof": run.header.proof}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


_FORMS: Mapping[Form, Callable[[Run, Verdict], str]] = {
    "markdown": _markdown,
    "junit": _junit,
    "html": _html,
    "json": _json,
}
