"""`traffic`: what one rank sends in a step of a recipe at full size, as a table; it needs no GPU and no ranks."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from contracts.harness.commands._completion import complete_recipes
from contracts.harness.commands._errors import one_clear_error, written_to
from contracts.harness.commands._layout import asked, changed, layout_of
from contracts.spec import Batch, Element, Execution, Recipe, Rehearsal, Routing, codec, refuse
from contracts.spec.topology import Group, Layout, topology

BYTES: dict[Element, int] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1,
}  # fmt: skip
FEW = 4  # members that are written out


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a rank issues of one kind over one group: how often, elements and bytes that it puts in.

    Args:
        link: bytes that its link carries when a ring passes them on.
    """

    op: str
    members: Group
    dtype: str
    times: int
    elements: int
    bytes: int
    link: float


@click.command()
@click.argument("recipe", shell_complete=complete_recipes)
@click.option("--stack", default="reference", show_default=True)
@click.option(
    "--degrees", "changes", metavar="pp=2,tp=2,…", help="Degrees beside data parallelism: pp tp cp ep etp sp."
)
@click.option("--world", type=int, default=8, show_default=True, help="Number of ranks.")
@click.option("--layout", type=click.Choice(["own-axis", "borrowed"]), help="Default: own-axis where the stack has it.")
@click.option("--fsdp/--no-fsdp", default=True, show_default=True, help="Whether data ranks shard parameters.")
@click.option("--replicas", type=int, default=1, show_default=True, help="Copies of what FSDP shards.")
@click.option("--microbatches", type=int, default=1, show_default=True, help="Microbatches of one sequence each.")
@click.option("--depth", type=int, help="Layers, instead of the recipe's.")
@click.option("--rank", type=int, default=0, show_default=True)
@click.option("--routing", type=click.Choice(["balanced", "crowded"]), default="balanced", show_default=True)
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write a page with the step as a timeline of each axis.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def traffic(
    recipe: str, stack: str, changes: str | None, world: int, layout: Layout | None, fsdp: bool, replicas: int,
    microbatches: int, depth: int | None, rank: int, routing: Routing, page: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Print what one rank sends in a step of RECIPE at full size, by collective and group.

    A dry run: the model is built, sharded and stepped on shapes only, in this process. It takes a minute for 52
    layers.
    """
    party = asked(stack, "preset", "rehearse")
    settled = party.preset(recipe, ())
    degrees = changed(replace(settled.degrees, pp=1, tp=1, cp=1, ep=1, etp=0, sp=False), changes or "")
    execution = Execution(
        world=world, degrees=degrees, layout=layout or layout_of(party), fsdp=fsdp, replicas=replicas,
        microbatches=microbatches,
    )  # fmt: skip
    fed = fed_with_one(replace(settled, depth=depth or settled.depth), execution)
    found = party.rehearse(fed, execution, rank, routing)
    if page is not None:
        written_to(page, drawn(fed, execution, rank, routing, found), "html")
    if as_json:
        body = {"recipe": fed.name, "execution": codec.encode(execution), "rank": rank, "routing": routing}
        click.echo(json.dumps(body | {"issued": [vars(row) for row in rows(found)]}, indent=2))
        return
    click.echo("\n".join([*told(fed, execution, rank, routing, found), *([f"page: {page}"] if page else [])]))


def fed_with_one(recipe: Recipe, execution: Execution) -> Recipe:
    """The recipe with one sequence for each microbatch of each rank that reads other ones."""
    if execution.microbatches < 1:
        raise refuse("microbatches", execution.microbatches, "must be at least 1", "cut none")
    dp = topology(execution.degrees, execution.world, execution.layout).dp
    return replace(recipe, batch=Batch(micro=1, total=dp * execution.microbatches))


def told(recipe: Recipe, execution: Execution, rank: int, routing: Routing, found: Rehearsal) -> Iterator[str]:
    """A rehearsal as lines of text, the same on every machine."""
    degrees = " ".join(f"{name} {int(value)}" for name, value in vars(execution.degrees).items())
    cut = f"fsdp in {execution.replicas} replicas" if execution.fsdp else "no fsdp"
    yield f"{recipe.name}: {recipe.depth} layers of {recipe.pattern}, {recipe.batch.total} x {recipe.seq_length} tokens"
    yield f"{execution.world} ranks, {execution.layout}, {degrees}, {cut}; rank {rank}, {routing} routing"
    yield ""
    yield f"{'':<24}{'over':<26}{'dtype':<10}{'times':>6}{'elements':>17}{'bytes put in':>17}{'over its link':>17}"
    for row in rows(found):
        yield (
            f"{row.op:<24}{_group(row.members):<26}{row.dtype:<10}{row.times:>6}{row.elements:>17_}{row.bytes:>17_}"
            f"{round(row.link):>17_}"
        )
    yield f"{'':<24}{'':<26}{'':<10}{'':>6}{'':>17}{'':>17}{round(sum(row.link for row in rows(found))):>17_}"
    yield ""
    held = {name: sum(getattr(each, name) for each in found.held.values()) for name in ("weight", "gradient", "state")}
    yield "held after it: " + ", ".join(f"{name}s {size:_} B" for name, size in held.items())


@dataclass(frozen=True, kw_only=True)
class Span:
    """Like collectives or messages of one lane that follow each other. `left` and `width` are thousandths of all bytes
    that the rank's links carry in the step."""

    op: str
    left: float
    width: float
    title: str


def lanes(execution: Execution, rank: int, found: Rehearsal) -> dict[str, list[Span]]:
    """The step in the order in which the rank issues it, a lane for each axis."""
    axes = topology(execution.degrees, execution.world, execution.layout).groups
    spent: list[tuple[str, str, str, int, int, float]] = []  # axis, op, over whom, times, bytes put in, over the link
    for each in found.issued:
        members = found.groups[each.group] if each.peer is None else tuple(sorted((rank, each.peer)))
        size = sum(math.prod(shape) * BYTES[dtype] for shape, dtype in zip(each.shapes, each.dtypes, strict=True))
        axis, op = _axis(members, axes, each.peer is not None), f"{each.op} {each.reduce}".rstrip()
        times, link = 1, _link(op, members, size)
        if spent and spent[-1][:3] == (axis, op, _group(members)):
            *_, before, put_in, carried = spent.pop()
            times, size, link = before + 1, put_in + size, carried + link
        spent.append((axis, op, _group(members), times, size, link))
    whole, at, told = sum(each[-1] for each in spent) or 1.0, 0.0, dict[str, list[Span]]()
    for axis, op, over, times, size, link in spent:
        title = f"{op} over {over}: {times} x, {size:_} B put in, {round(link):_} B over its link"
        told.setdefault(axis, []).append(
            Span(op=op.partition(" ")[0], left=round(1000 * at / whole, 2), width=round(1000 * link / whole, 2),
                 title=title)
        )  # fmt: skip
        at += link
    return told


def _axis(members: Group, axes: Mapping[str, tuple[Group, ...]], message: bool) -> str:
    """The axes that these ranks are a group of, or between whose members a message goes; else the ranks."""
    if message:
        of = [axis for axis in ("pp", "cp") if any({*members} <= {*group} for group in axes[axis])]
        return of[0] if of else f"ranks {_group(members)}"
    of = [axis for axis, groups in axes.items() if len(members) > 1 and members in groups]
    return ", ".join(of) or f"ranks {_group(members)}"


def drawn(recipe: Recipe, execution: Execution, rank: int, routing: Routing, found: Rehearsal) -> str:
    """A rehearsal as a page without a network."""
    from contracts.court.html_report import frame, template  # jinja2, which text does not need

    head, about, *table = told(recipe, execution, rank, routing, found)
    shown = lanes(execution, rank, found)
    kinds = list(dict.fromkeys(each.op for spans in shown.values() for each in spans))
    text: str = template("traffic.html.j2").render(frame(head), about=about, table=table, lanes=shown, kinds=kinds)
    return text


def rows(found: Rehearsal) -> list[Row]:
    """What was issued, by kind, group and dtype, in the order in which they came first."""
    sums: dict[tuple[str, Group, str], list[int]] = {}
    for each in found.issued:
        members = found.groups[each.group] if each.peer is None else (each.peer,)
        op = f"{each.op} {each.reduce}".rstrip()
        for shape, dtype in zip(each.shapes, each.dtypes, strict=True):
            held = sums.setdefault((op, members, dtype), [0, 0, 0])
            size = math.prod(shape)
            held[0], held[1], held[2] = held[0] + 1, held[1] + size, held[2] + size * BYTES[dtype]
    return [
        Row(
            op=op,
            members=members,
            dtype=dtype,
            times=times,
            elements=size,
            bytes=put_in,
            link=_link(op, members, put_in),
        )
        for (op, members, dtype), (times, size, put_in) in sums.items()
    ]  # fmt: skip


def _link(op: str, members: Group, put_in: int) -> float:
    kind, ranks = op.partition(" ")[0], len(members)
    factors: dict[str, Any] = {
        "all_gather": ranks - 1, "all_reduce": 2 * (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks,
        "all_to_all": (ranks - 1) / ranks, "receive": 0,
    }  # fmt: skip
    return float(put_in * factors.get(kind, 1))


def _group(members: Group) -> str:
    if len(members) <= FEW:
        return " ".join(map(str, members))
    return f"{members[0]} {members[1]} … {members[-1]} ({len(members)})"
