"""`budget` and `kernels`: whether a recipe fits a card, line by line, and which kernels would be chosen, and why."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from contracts.court.sources import explained
from contracts.harness.commands._completion import complete_recipes
from contracts.harness.commands._errors import one_clear_error
from contracts.harness.commands._layout import DEGREES, asked, changed, layout_of
from contracts.spec import Layout, Recipe, Refused, cards, codec, refuse
from contracts.spec.capacity import PARTS, Budget, Card, KernelRequest, KernelRule, Spread, StageBudget

TOO_LARGE = 1
GB = 10**9


@click.command()
@click.argument("recipe", shell_complete=complete_recipes)
@click.option("--stack", default="reference", show_default=True)
@click.option("--degrees", "changes", metavar="pp=2,tp=2,…", help="Change degrees of the recipe: pp tp cp ep etp sp.")
@click.option("--world", type=int, default=8, show_default=True, help="Number of ranks.")
@click.option("--layout", type=click.Choice(["own-axis", "borrowed"]), help="Default: own-axis where the stack has it.")
@click.option("--sharding", type=click.Choice(["none", "optimizer", "full"]), default="full", show_default=True,
              help="What data parallelism shards.")  # fmt: skip
@click.option("--kernels", type=click.Choice(["fused", "eager"]), default="fused", show_default=True,
              help="What computes the layers: fused kernels, or eager torch, operation by operation.")  # fmt: skip
@click.option("--micro", type=int, help="Sequences in a microbatch, instead of the recipe's.")
@click.option("--card", "card_name", metavar="NAME|GIB", default="h200", show_default=True,
              help="A card by name, or the GiB that a process may use.")  # fmt: skip
@click.option("--acknowledge", multiple=True, metavar="NAME", help="Accept a deprecated name.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def budget(
    recipe: str, stack: str, changes: str | None, world: int, layout: Layout | None, sharding: Any, kernels: Any,
    micro: int | None, card_name: str, acknowledge: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Estimate the memory that RECIPE needs on one rank of each pipeline stage, and compare it with a card.

    Exit code 0 when it fits or is tight, 1 when it is too large, 2 for bad input. A budget is an estimate: only the
    receipt of a run proves that it fits.
    """
    party = asked(stack, "preset", "budget", "fit", "card", "count_parameters")
    settled = party.preset(recipe, acknowledge)
    if micro is not None:
        settled = replace(settled, batch=replace(settled.batch, micro=micro))
    degrees = changed(settled.degrees, changes or "")
    spread = Spread(
        degrees=degrees, world=world, layout=layout or layout_of(party), sharding=sharding, kernels=kernels
    )  # fmt: skip
    card = _card(party, card_name)
    answer = party.budget(settled, spread, card)
    fit = party.fit(answer.total_bytes, card, None)
    if as_json:
        body = {"recipe": settled.name, "spread": codec.encode(spread), "budget": codec.encode(answer)}
        click.echo(json.dumps(body | {"fit": codec.encode(fit)}, indent=2))
    else:
        counted = party.count_parameters(settled)
        click.echo(f"{settled.name}: {counted.total:_} parameters, {counted.active:_} active")
        click.echo("\n".join(told(settled, spread, answer)))
        click.echo(f"{fit.reason}: an estimate, no proof")
    sys.exit(TOO_LARGE if fit.word == "too large" else 0)


def told(recipe: Recipe, spread: Spread, answer: Budget) -> Iterator[str]:
    """A budget as lines of text: every stage with its lines, and the comparison with the card."""
    degrees = " ".join(f"{name} {getattr(spread.degrees, name)}" for name in DEGREES)
    yield f"{spread.world} ranks, {spread.layout}, {degrees}, data ranks shard: {spread.sharding}"
    yield f"microbatch {recipe.batch.micro} of {recipe.seq_length} tokens, {recipe.dtype}"
    for stage in answer.stages:
        yield ""
        yield f"stage {stage.stage}: {len(stage.letters)} layers {stage.letters}"
        yield from _lines(stage)
    yield ""
    usable = answer.card.usable_bytes
    need = f"{_gb(answer.total_bytes)} of {_gb(usable)} ({100 * answer.total_bytes / usable:.1f} %)"
    yield f"stage {answer.heaviest} needs {need} on {answer.card.name}"
    yield f"verdict: {answer.fit}"


def _lines(stage: StageBudget) -> Iterator[str]:
    for part in PARTS:
        lines = [line for line in stage.lines if line.part == part]
        yield f"  {part:<40}{_gb(sum(line.bytes for line in lines)):>12}"
        for line in lines:
            yield f"    {line.what:<38}{line.bytes:>16_} B  = {line.formula}"
    yield f"  {'total':<40}{_gb(stage.total_bytes):>12}"


@click.command()
@click.option("--stack", default="reference", show_default=True)
@click.option(
    "--device", metavar="sm_NN|CARD", help="As the driver names it, or a card; without it no fast kernel is chosen."
)
@click.option("--without", multiple=True, metavar="PACKAGE", help="A package that is not installed; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def kernels(stack: str, device: str | None, without: tuple[str, ...], as_json: bool) -> None:
    """Print which kernel would run on a device for each variant of the catalogue, and the reason for a fallback.

    The workload is plain causal attention, and every package that a rule names counts as installed. The receipt of a
    job says which kernel ran.
    """
    device = cards.device(device) if device is not None else None
    party = asked(stack, "kernels", "kernel")
    rules: tuple[KernelRule, ...] = party.kernels()
    installed = frozenset(rule.package for rule in rules if rule.package) - set(without)
    found = []
    for rule in rules:
        request = KernelRequest(variant=rule.variant, device=device, installed=installed)
        try:
            found.append((rule, party.kernel(request)))
        except Refused as refused:
            raise refuse("variant", rule.variant, f"is in the catalogue and refused: {refused}", "mend it") from None
    if as_json:
        body = [{"rule": codec.encode(rule), "choice": codec.encode(choice)} for rule, choice in found]
        click.echo(json.dumps({"device": device, "kernels": body}, indent=2))
        return
    click.echo(f"device {device or 'unknown'}")
    for rule, choice in found:
        guard = ", ".join(rule.devices) or "any device"
        click.echo(f"{rule.family:<10} {rule.variant:<11} → {choice.actual:<11} [{guard}]")
        if choice.fallback_reason:
            click.echo(f"{'':<25}{choice.fallback_reason}")
        click.echo(f"{'':<25}source: {'; '.join(explained(rule.source))}")


def _card(party: Any, text: str) -> Card:
    """A card by name, or one of so many GiB."""
    if not text.isdigit():
        card: Card = party.card(text)
        return card
    if not 1 <= int(text) <= 10_000:
        raise refuse("--card", text, "must lie in 1 … 10000 GiB", "give the GiB that a process may use")
    return Card(name=f"{text} GiB", usable_bytes=int(text) * 2**30)


def _gb(number: int) -> str:
    return f"{number / GB:.2f} GB"
