"""`triage` and `goodput`: where to look first in a run's folder, and where its wall clock went."""

import datetime
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from contracts.bringup.instruments import run_folder
from contracts.bringup.instruments.run_folder import RunFolder
from contracts.court.party import OnTheStand
from contracts.harness import parties
from contracts.harness.commands._errors import one_clear_error, show, show_json, the_stack_talks_to_stderr
from contracts.spec import NotOffered, Refused, codec, refuse
from contracts.spec.goodput import Span
from contracts.spec.manifest import Manifest
from contracts.spec.receipt import Receipt
from contracts.spec.triage import Diagnosis, RunFacts, RunIdentity

WRONG = 1
"""Exit code when something is wrong with the run; 0 when nothing is, or it still has time."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The file that `goodput` reads, in ms."""

    start: int
    end: int
    spans: tuple[Span, ...]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--stack", default="reference", show_default=True, help="The stack whose rules and receipts are used.")
@click.option("--patience", type=float, default=600.0, show_default=True, help="Seconds of silence that are normal.")
@click.option("--startup", type=float, default=3600.0, show_default=True, help="Seconds to the first step, cold.")
@click.option("--steps", type=int, help="How many steps were seen; leave out when nobody knows.")
@click.option("--waiting", metavar="RANKS", default="", help="Ranks that wait in a collective: 0,1,5.")
@click.option("--tokens", metavar="COUNTS", default="", help="Tokens of each rank's shard: 512,512,0.")
@click.option("--against", type=click.Path(path_type=Path), help="Folder of the run to compare with.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def triage(
    run: Path, stack: str, patience: float, startup: float, steps: int | None, waiting: str, tokens: str,
    against: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say where to look first in the folder RUN, from its manifest.json, receipt.json, logs and artifacts."""
    seen = run_folder.read_folder(run)
    with the_stack_talks_to_stderr():
        party: Any = OnTheStand(parties.load(stack), (), ("triage", "read_receipt"))
    if "triage" in party.missing:
        raise NotOffered(f"{party.name} does not offer triage")
    receipt, unread = _read(party, seen.receipt)
    facts = _facts(seen, receipt is not None, patience, startup, steps, waiting, tokens)
    if against is not None:
        prior, why = _read(party, run_folder.read_folder(against).receipt)
        if not isinstance(prior, Receipt):
            raise refuse("--against", str(against), f"holds no receipt: {why or 'no receipt.json'}", "give a whole run")
        facts = replace(facts, own=_identity(receipt) if isinstance(receipt, Receipt) else None, prior=_identity(prior))
    found: Diagnosis = party.triage(facts)
    if as_json:
        body = {"run": str(run), "facts": codec.encode(facts), "receipt_unread": unread,
                "diagnosis": codec.encode(found)}  # fmt: skip
        show_json(body)
    else:
        show(_told(seen.manifest, found, unread))
    sys.exit(0 if found.layer is None else WRONG)


@click.command()
@click.argument("spans", type=click.Path(path_type=Path))
@click.option("--stack", default="reference", show_default=True, help="The stack whose arithmetic is used.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def goodput(spans: Path, stack: str, as_json: bool) -> None:
    """Split the wall clock into parts. SPANS holds {"start": ms, "end": ms, "spans": [{"kind", "start", "end"}, …]}."""
    clock = _read_clock(spans)
    with the_stack_talks_to_stderr():
        party: Any = OnTheStand(parties.load(stack), (), ("goodput",))
    if party.missing:
        raise NotOffered(f"{party.name} does not offer goodput")
    found = party.goodput(clock.spans, clock.start, clock.end)
    if as_json:
        click.echo(json.dumps(codec.encode(found), indent=2, allow_nan=False))
        return
    for part, took in found.parts.items():
        click.echo(f"{part:<11}{took / 1000:>14.3f} s {took / found.wall:>7.1%}")
    click.echo(f"{'wall':<11}{found.wall / 1000:>14.3f} s   goodput {found.goodput:.1%}")
    if found.steady:
        each = found.steady_ms / len(found.steady)
        click.echo(f"{len(found.steady)} of {found.steps} steps ran undisturbed, {each:.1f} ms each")
    else:
        click.echo(f"none of {found.steps} steps ran undisturbed: there is no step time")


def _facts(
    seen: RunFolder, receipt: bool, patience: float, startup: float, steps: int | None, waiting: str, tokens: str
) -> RunFacts:
    manifest, now = seen.manifest, datetime.datetime.now(datetime.UTC)
    begun = steps is None or steps > 0 or manifest is None
    launched = now if manifest is None else datetime.datetime.fromisoformat(manifest.launched_at)
    return RunFacts(
        state=manifest.state if manifest else None,
        silent_s=run_folder.seconds_silent(manifest, now) if manifest else 0.0,
        patience_s=patience,
        startup_s=None if begun else max(0.0, (now - launched).total_seconds()),
        startup_budget_s=startup,
        steps=steps,
        receipt=receipt,
        logs=bool(seen.logs),
        waiting_ranks=_numbers("--waiting", waiting),
        local_tokens=_numbers("--tokens", tokens),
        declared=manifest.artifacts if manifest else (),
        present=seen.present,
        error=manifest.error if manifest else None,
    )


def _told(manifest: Manifest | None, found: Diagnosis, unread: str | None) -> str:
    name = f"{manifest.run}: {manifest.state}" if manifest else "no manifest"
    lines = [f"{name}, {found.why}" if found.layer is None else name]
    rows = {
        "layer": found.layer, "symptom": found.symptom, "because": found.why, "look first at": found.first_surface,
        "usual fix": found.fix,
    }  # fmt: skip
    lines += [f"  {title:<14}{text}" for title, text in rows.items() if text and found.layer]
    lines += [f"  {'receipt':<14}is no receipt: {unread}"] if unread else []
    return "\n".join(lines)


def _read(party: Any, text: bytes | None) -> tuple[Receipt | bytes | None, str | None]:
    """The receipt, and why the file is not taken for one: a torn one is none. Of a stack that reads no receipts any
    file will do."""
    if text is None or "read_receipt" in party.missing:
        return text, None
    try:
        return party.read_receipt(text.decode()), None
    except UnicodeDecodeError as error:
        return None, f"not text: {error}"
    except Refused as refused:
        return None, str(refused.refusals[0])


def _identity(receipt: Receipt) -> RunIdentity:
    """The facts that a receipt has of its run. A fact that it lacks cannot differ; `compare` is strict about that."""
    lane, provenance = receipt.lane, receipt.provenance
    components = [f"{c.name} {c.version} {c.build or ''}".strip() for c in provenance.components]
    return RunIdentity(
        lane=f"{lane.preset} {lane.mode} {lane.regime} {lane.compile} {codec.dumps(lane.degrees)} x{lane.world}",
        metric="tokens/s over the bounded window",
        image=provenance.image or "not said",
        backend_identity=", ".join(sorted(f"{backend.part}={backend.actual}" for backend in receipt.backends)),
        runtime_provenance=", ".join([f"python {provenance.python}", *sorted(components)]),
        volumes={},
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",")) if text.strip() else ()
    except ValueError:
        raise refuse(option, text, "is no list of whole numbers", "write 0,1,5") from None


def _read_clock(path: Path) -> Clock:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise refuse(
            "spans",
            str(path),
            f"cannot be read: {error.strerror or error}",
            "give a JSON file; `rankproof sample spans.json` prints one",
        ) from None
    return codec.loads(Clock, text, name="spans")
