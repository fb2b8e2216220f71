"""`compare`: two receipts side by side, if they may stand there."""

import json
from pathlib import Path
from typing import Any

import click

from contracts.court.party import OnTheStand
from contracts.harness import parties
from contracts.harness.commands._errors import one_clear_error, the_stack_talks_to_stderr
from contracts.spec import NotOffered, codec, refuse
from contracts.spec.receipt import Comparison, Receipt
from contracts.spec.records import EXIT_CODES

RECEIPT = "receipt.json"


@click.command()
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--stack", default="reference", show_default=True, help="Who reads and compares them.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def compare(base: Path, candidate: Path, stack: str, as_json: bool) -> None:
    """Compare the receipts BASE and CANDIDATE: files, or the folders they stand in.

    Ends with 0 inside one class, with 3 where the class changed or the runs are not comparable.
    """
    with the_stack_talks_to_stderr():
        subject = parties.load(stack)
    party: Any = OnTheStand(subject, (), ("read_receipt", "compare"))
    if party.missing:
        raise NotOffered(f"{subject.name} does not offer {', '.join(party.missing)}")
    first, second = (party.read_receipt(text_of(path)) for path in (base, candidate))
    found: Comparison = party.compare(first, second)
    click.echo(json.dumps(codec.encode(found), indent=2) if as_json else told(found, first, second))
    if found.standing != "same class":
        raise click.exceptions.Exit(EXIT_CODES["incomplete"])


def text_of(path: Path) -> str:
    """The text of a receipt, or of the one in a folder.

    Raises:
        Refused: when there is none, or it is not text.
    """
    file = path / RECEIPT if path.is_dir() else path
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise refuse(
            "receipt", str(file), f"cannot be read: {error.strerror}", "give a receipt or its folder"
        ) from None
    except UnicodeDecodeError as error:
        raise refuse("receipt", str(file), f"is not text: {error.reason}", "give a receipt or its folder") from None


def told(found: Comparison, base: Receipt, candidate: Receipt) -> str:
    """The comparison as a person reads it."""
    if found.standing != "same class":
        return "\n".join((f"{found.standing}:", *(f"  {difference}" for difference in found.differences)))
    lines = [f"same class: {base.lane.family} on {base.provenance.machine.host}"]
    for name, receipt in (("base", base), ("candidate", candidate)):
        lines.append(f"  {name:<9} {_figure(receipt)}")
    if found.ratio is not None:
        lines.append(f"  ratio     {found.ratio:.4f} (candidate / base, tokens/s)")
    lines += [f"  besides   {each}" for each in found.besides]
    return "\n".join(lines)


def _figure(receipt: Receipt) -> str:
    window, rate = receipt.window, receipt.tokens_per_second
    if rate is None or window is None:
        return f"no figure: {receipt.withheld or 'it was not measured'}"
    peak = ""
    if receipt.peak is not None:
        allocated, reserved = (size / 2**30 for size in (receipt.peak.allocated, receipt.peak.reserved))
        peak = f", peak {allocated:.1f} GiB allocated, {reserved:.1f} GiB reserved"
    return f"{rate:,.1f} tokens/s over steps {window.first} to {window.last} ({window.dropped} dropped){peak}"
