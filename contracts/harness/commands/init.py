"""`init` begins an adapter for a stack, and shows how much of it is answered."""

import json
import keyword
import re
import sys
import textwrap
from pathlib import Path

import click

from contracts.contract import TIERS
from contracts.court import report
from contracts.court.judge import DEADLINE_S
from contracts.court.wording import counted
from contracts.harness import adapter_probe, adapter_skeleton, parties, proposed_deviations
from contracts.harness.commands._errors import COLOURS, one_clear_error, the_stack_talks_to_stderr, told
from contracts.harness.families import read_checks
from contracts.harness.gate import today
from contracts.harness.supervisor import supervised
from contracts.spec import Refusals
from contracts.spec.records import Outcome, Result, Run, Verdict

WIDTH = 160  # of the line of one case
_BY_TIER = dict(zip(TIERS, ("one process", "one GPU", "several ranks"), strict=True))
_LABELS: dict[Outcome, str] = {"violated": "Violated", "broken": "Broken", "not run": "Not run"}


@click.command()
@click.argument("name", required=False)
@click.option("--group", "groups", multiple=True, metavar="GROUP",
              help=f"The questions to begin with: {', '.join(adapter_skeleton.sides())}. "
              f"[default: {', '.join(adapter_skeleton.DEFAULT)}]")  # fmt: skip
@click.option("--probe", "stack", metavar="PACKAGE.MODULE:NAME", help="Judge what an adapter answers so far.")
@click.option("--propose", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="With --probe: write what is violated as deviations, for somebody to fill in.")  # fmt: skip
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), default=DEADLINE_S, show_default=True,
              metavar="SECONDS", help="Time limit of one case, and of loading the stack.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --probe: JSON instead of text.")
@one_clear_error
def init(
    name: str | None, groups: tuple[str, ...], stack: str | None, propose: Path | None, deadline: float, as_json: bool
) -> None:
    """Write NAME_lane.py, an adapter that answers nothing yet; or probe one that answers something."""
    file = Path(f"{name}_lane.py")
    _refuse(name, groups, stack, propose, file, as_json)
    if stack is None:
        file.write_text(adapter_skeleton.written(str(name), groups or adapter_skeleton.DEFAULT), encoding="utf-8")
        click.echo(f"{file} answers nothing yet. Fill a method, name it in `offers`, then:\n"
                   f"  rankproof init --probe {name}_lane:Stack")  # fmt: skip
        return
    sys.exit(supervised(lambda: told(lambda: _probe(stack, propose, deadline, as_json))))


def _refuse(
    name: str | None, groups: tuple[str, ...], stack: str | None, propose: Path | None, file: Path, as_json: bool
) -> None:
    """Refuse what cannot be carried out, before anything is written; every fault at once."""
    found = Refusals()
    found.unless((name is None) != (stack is None), "init", name or stack, "wants a NAME or a --probe, and one of them",
                 "write `rankproof init NAME`, or `rankproof init --probe NAME_lane:Stack`")  # fmt: skip
    if name is not None:
        legal = re.fullmatch(r"[a-z][a-z0-9_]*", name) and not keyword.iskeyword(name)
        found.unless(bool(legal), "name", name, "is no name of a module", "write lower-case letters, digits and _")
        found.unless(not file.exists(), "file", str(file), "exists and is not written over",
                     "choose another name, or probe what is there")  # fmt: skip
    for group in groups:
        found.unless(group in adapter_skeleton.sides(), "group", group, "is no group of questions",
                     f"the groups are {', '.join(adapter_skeleton.sides())}")  # fmt: skip
    found.unless(stack is not None or not as_json, "json", as_json, "shows what a probe found", "give --probe")
    if propose is not None:
        found.unless(stack is not None, "propose", str(propose), "proposes what a probe found", "give --probe")
        found.unless(not propose.exists(), "propose", str(propose), "exists and is not written over",
                     "it may hold declared deviations; choose another file")  # fmt: skip
        found.unless(propose.parent.is_dir(), "propose", str(propose), "lies in no folder", "make the folder first")
    found.raise_any()


def _probe(stack: str, propose: Path | None, deadline: float, as_json: bool) -> int:
    read_checks()
    with the_stack_talks_to_stderr():
        party = parties.load(stack, deadline_s=deadline)
        run, judged = adapter_probe.probed(party, stack, deadline_s=deadline, ended=_say)
    if as_json:
        rows = [{"questions": row.questions, "contracts": {str(tier): n for tier, n in row.promises.items()}}
                for row in adapter_probe.unlocked(run.header.subject.offers)]  # fmt: skip
        click.echo(json.dumps(json.loads(report.render(run, judged, "json")) | {"next": rows}, indent=1))
    else:
        _show(run, judged)
        _show_next(run)
    if propose is not None:
        _propose(run, propose, to_stderr=as_json)
    if not as_json:
        click.secho(report.headline(judged), fg=COLOURS.get(judged.word, "red"), bold=True)
    return judged.exit_code


def _say(result: Result) -> None:
    """One line on stderr as a case ends, so that a probe that is stopped has said what it found."""
    if result.outcome != "not offered":
        words = "" if result.outcome == "holds" else f": {result.words.partition(chr(10))[0]}"
        click.echo(f"{result.outcome:<9} {result.seconds:5.1f} s  {result.item}{words}"[:WIDTH], err=True)


def _show(run: Run, judged: Verdict) -> None:
    """What works, by id, and what does not, with its words."""
    subject = run.header.subject
    click.echo(f"{subject.name} {subject.version} answers {', '.join(sorted(subject.offers)) or 'nothing yet'}")
    ends: dict[str, set[Outcome]] = {}
    for result in judged.results:
        ends.setdefault(result.id, set()).add(result.outcome)
    held = [id for id, seen in ends.items() if "holds" in seen and seen <= {"holds", "not offered"}]
    declined = [id for id, seen in ends.items() if seen == {"not offered"}]
    for label, ids in (("holds", held), ("declines", declined)):
        if ids:
            click.echo(textwrap.fill(f"{label}: {len(ids)} contracts, {' '.join(ids)}", 120, subsequent_indent="  "))
    for outcome, label in _LABELS.items():
        found = adapter_probe.first_of_each(result for result in judged.results if result.outcome == outcome)
        if found:
            click.echo(f"\n{label}: {len(found)} contracts")
        for result, others in found:
            more = f" and {counted(len(others), 'more case')}" if others else ""
            click.echo(f"  {result.item}{more}")
            for name, words in report.details(run, result):
                if name in ("got", "contract", "rerun"):
                    click.echo(f"    {name:<8} " + words.replace("\n", f"\n{'':<13}"))
    for fault in judged.faults:
        click.echo(f"fault ({fault.kind}): {fault.words}")
    for each in run.unclaimed:
        click.echo(f"works, but is not in offers: {each.question} ({each.evidence}); name it in `offers`")


def _show_next(run: Run) -> None:
    """The table of what to answer next, and what only several ranks can judge."""
    subject = run.header.subject
    wide = adapter_probe.of_ranks(subject.offers)
    if wide:
        click.echo(f"\n{len(wide)} contracts of several ranks need no other question:\n"
                   f"  rankproof check --stack {subject.origin} --with none --profile dist --ranks 4")  # fmt: skip
    rows = adapter_probe.unlocked(subject.offers)
    if not rows:
        return
    width = max(len(" + ".join(row.questions)) for row in rows)
    head = "".join(f"{name:>15}" for name in _BY_TIER.values())
    click.echo(f"\n{'answer next':<{width}}{head}   (further contracts that could be judged, by …)")
    for row in rows:
        counts = "".join(f"{row.promises[tier] or '':>15}" for tier in _BY_TIER)
        click.echo(f"{' + '.join(row.questions):<{width}}{counts}")
    click.echo("")


def _propose(run: Run, propose: Path, *, to_stderr: bool) -> None:
    count = sum(result.outcome == "violated" for result in run.results)
    if not count:
        click.echo(f"nothing is violated, and {propose} is not written", err=to_stderr)
        return
    propose.write_text(proposed_deviations.proposal(run, run.results, today()), encoding="utf-8")
    told_of = f"{propose} proposes deviations for {count} violated cases: fill in reason, issue and owner of each"
    click.echo(told_of, err=to_stderr)
