"""The verdict as one HTML page without a network: tiles, a family × outcome matrix, causes, every item under its name.

`page` is the page of one run, `overview` that of several: stacks × families, and the trend of each stack's runs. Style
and script stand in the page; its content security policy allows nothing else, so a stack's words cannot run.
"""

import base64
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from contracts.contract import LAW
from contracts.court import sources
from contracts.court.baseline import change
from contracts.court.causes import DETAILED, HEADINGS, Apart, Cause, apart, apart_by_rank, by_outcome, causes
from contracts.court.mesh_picture import mesh_picture, schedule_picture
from contracts.court.plain_text import fit
from contracts.court.wording import (
    answered_by,
    by_id,
    counted,
    device_line,
    family_of,
    headline,
    items,
    judged_code,
    kill_line,
    law_lines,
    ranks_words,
    rerun,
    rerun_words,
)
from contracts.spec.records import Outcome, Result, Run, Verdict

_TENSORS, _CASES = 24, 20  # rows and columns of a picture of errors; a page is to be looked at
_RANKS = 64  # rows, likewise
_COMPARED = 100  # of each kind of change, that are named
_CONTRACTS = 6  # of one cause, whose statements are told
_SLOWEST = 12


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One square of a picture: the error of a tensor in a case. `heat` is 0 … 1; None if nothing is reported."""

    heat: float | None = None
    title: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Errors of tensors (rows) in cases, or by kind (columns)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    left: str = ""


def page(run: Run, verdict: Verdict) -> str:
    """The page of one run, both made `fit` before."""
    found = causes(run, verdict.results)
    grouped = by_outcome(found)
    held = [result for result in verdict.results if result.outcome == "holds"]
    counts = Counter((family_of(result.id), result.outcome) for result in verdict.results)
    outcomes = [outcome for outcome in HEADINGS if verdict.counts[outcome]]
    text: str = template("report.html.j2").render(
        frame(headline(verdict)),
        run=run,
        verdict=verdict,
        outcomes=outcomes,
        headings=HEADINGS,
        detailed=DETAILED,
        families=[
            (family, {outcome: counts[family, outcome] for outcome in outcomes})
            for family in dict.fromkeys(family_of(result.id) for result in verdict.results)
        ],
        sections=list(grouped.items()),
        numbers={id(cause): number for number, cause in enumerate(found, start=1)},
        held=[(family, by_id(group)) for family, group in _by_family(held)],
        layers=_layers(found),
        slowest=_slowest(verdict),
        seconds=sum(result.seconds for result in verdict.results),
        command=rerun_words(run),
        kills=Counter(kill.fate for kill in run.kills),
        kill_line=kill_line(run),
        statement=lambda id: _statement(run, id),
        answered=lambda cause: answered_by(run, cause.results[0]),
        picture=_tensors,
        by_rank=_layers_by_rank,
        mesh=lambda cause: mesh_picture(cause.results),
        schedule=lambda cause: schedule_picture(cause.results) if cause.outcome in ("violated", "broken") else None,
        compared=change(run, verdict),
        law=law_lines(run, verdict),
        judged=judged_code(run),
        device=device_line(run),
        compared_items=_COMPARED,
        rerun=lambda result: rerun(run, result),
        ranks=lambda result: " ".join(ranks_words(result.item, run.header.ranks)),
        identity=id,
        family_of=family_of,
        by_id=by_id,
        items=items,
        counted=counted,
        shown_contracts=_CONTRACTS,
    )
    return text


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run with its verdict, and the name that the page calls it by: the folder of its record."""

    label: str
    run: Run
    verdict: Verdict


def overview(recorded: Sequence[Recorded]) -> str:
    """The page of several runs: each run × family, and for each stack and profile the trend over its runs, oldest
    first, with what is newly red and what is mended since the run before."""
    recorded = [Recorded(label=fit(each.label), run=fit(each.run), verdict=fit(each.verdict)) for each in recorded]
    families = sorted({family_of(result.id) for each in recorded for result in each.verdict.results})
    series: dict[tuple[str, str], list[Recorded]] = {}
    for each in sorted(recorded, key=lambda each: each.run.header.started):
        series.setdefault((each.run.header.subject.name, each.verdict.profile), []).append(each)
    text: str = template("overview.html.j2").render(
        frame(f"rankproof: {counted(len(recorded), 'report')}"),
        recorded=recorded,
        families=families,
        cells={id(each): _worst(each.verdict) for each in recorded},
        identity=id,
        outcomes=[outcome for outcome in HEADINGS if any(each.verdict.counts[outcome] for each in recorded)],
        trends=[
            (name, profile, [_step(each, before) for each, before in zip(runs, [None, *runs[:-1]], strict=True)])
            for (name, profile), runs in series.items()
        ],
        conventions=_conventions(recorded),
        counted=counted,
    )
    return text


def _conventions(recorded: Sequence[Recorded]) -> list[tuple[str, bool, list[str]]]:
    """Each convention that a run declares, whether all runs have the same, and what each declares."""
    declared = [each.run.header.subject.conventions for each in recorded]
    names = sorted({name for each in declared for name in each})
    rows = [(name, [each.get(name, "") for each in declared]) for name in names]
    return [(name, len({*chosen}) == 1, chosen) for name, chosen in rows]


def _worst(verdict: Verdict) -> Mapping[str, tuple[Outcome, Mapping[str, int]]]:
    """Of each family the worst outcome, and how many of each."""
    counts: dict[str, Counter[str]] = {}
    for result in verdict.results:
        counts.setdefault(family_of(result.id), Counter())[result.outcome] += 1
    judged: tuple[Outcome, ...] = ("violated", "broken", "not run", "deviates", "untested", "holds", "not offered")
    return {family: (next(o for o in judged if each[o]), each) for family, each in counts.items()}


def _step(now: Recorded, before: Recorded | None) -> dict[str, Any]:
    """One run of a trend: what is newly red and what is mended since the one before."""
    red = {str(r.item): r for r in now.verdict.results if r.outcome in ("violated", "broken")}
    was = {str(r.item): r.outcome for r in before.verdict.results} if before else {}
    holds = {str(r.item) for r in now.verdict.results if r.outcome == "holds"}
    return {
        "recorded": now,
        "new": [item for item in red if before and was.get(item) not in ("violated", "broken")],
        "mended": [item for item, outcome in was.items() if outcome in ("violated", "broken") and item in holds],
        "seconds": sum(result.seconds for result in now.verdict.results),
        "first": before is None,
    }


def _by_family(results: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    grouped: dict[str, list[Result]] = {}
    for result in results:
        grouped.setdefault(family_of(result.id), []).append(result)
    return list(grouped.items())


def _statement(run: Run, id: str) -> dict[str, Any]:
    """What a contract says and why, as far as the record and the suite that draws it know."""
    contract, recorded = LAW.contracts.get(id), run.plan.promises.get(id)
    return {
        "promise": recorded.promise if recorded else "",
        "story": contract.story if contract else "",
        "source": sources.explained(recorded.source) if recorded else (),
    }


def _slowest(verdict: Verdict) -> list[tuple[Result, float]]:
    """The slowest items, each with its share of the slowest."""
    slow = sorted(verdict.results, key=lambda result: -result.seconds)[:_SLOWEST]
    return [(result, result.seconds / slow[0].seconds) for result in slow if result.seconds >= 0.01]


def _tensors(cause: Cause) -> Picture | None:
    """The tensors of a cause that differ, by case: which are guilty, and by how much."""
    found = list(apart(cause.results))
    if not found:
        return None
    errors: dict[str, dict[str, Apart]] = {}
    for each in found:
        errors.setdefault(each.tensor, {})[_column(each.result)] = each
    columns = list(dict.fromkeys(_column(each.result) for each in found))
    names = list(errors)
    scale = _scale(found)
    return Picture(
        title="Relative error of each tensor that the words name",
        columns=tuple(columns[:_CASES]),
        rows=tuple(
            (name, tuple(_cell(errors[name].get(column), scale) for column in columns[:_CASES]))
            for name in names[:_TENSORS]
        ),
        left=_left(len(names) - _TENSORS, "tensor", len(columns) - _CASES, "case"),
    )


def _layers(found: Iterable[Cause]) -> Picture | None:
    """The largest error of each kind of tensor in each layer, over all that is violated; None without layers."""
    told = [each for cause in found if cause.outcome == "violated" for each in apart(cause.results)]
    layered = [each for each in told if each.layer is not None and each.error is not None]
    if not layered:
        return None
    largest: dict[tuple[str, int], Apart] = {}
    for each in layered:
        key = (each.kind, each.layer or 0)
        if key not in largest or (each.error or 0) > (largest[key].error or 0):
            largest[key] = each
    layers = sorted({layer for _, layer in largest})
    kinds = list(dict.fromkeys(kind for kind, _ in largest))
    scale = _scale(layered)
    return Picture(
        title="Largest relative error by tensor and layer, over everything that is violated",
        columns=tuple(f"layer {layer}" for layer in layers[:_TENSORS]),
        rows=tuple(
            (kind, tuple(_cell(largest.get((kind, layer)), scale) for layer in layers[:_TENSORS]))
            for kind in kinds[:_TENSORS]
        ),
        left=_left(len(kinds) - _TENSORS, "tensor", len(layers) - _TENSORS, "layer"),
    )


def _layers_by_rank(cause: Cause) -> Picture | None:
    """The largest error that each rank found in each layer, of the first result whose ranks say; None without layers.
    A rank that found nothing has an empty row, and one that another rank ended has none."""
    for result in cause.results:
        told = [(rank, each) for rank, each in apart_by_rank(result) if each.error is not None]
        if all(each.layer is None for _, each in told):
            continue
        largest: dict[tuple[int, int | None], Apart] = {}
        for rank, each in sorted(told, key=lambda pair: pair[1].error or 0):
            largest[rank, each.layer] = each
        ranks = sorted({rank for found in result.on_ranks for rank in found.ranks})
        layers = sorted({layer for _, layer in largest}, key=lambda layer: -1 if layer is None else layer)
        scale = _scale(each for _, each in told)
        return Picture(
            title=f"Largest relative error by rank and layer in {result.item}",
            columns=tuple("no layer" if layer is None else f"layer {layer}" for layer in layers[:_TENSORS]),
            rows=tuple(
                (f"rank {rank}", tuple(_cell(largest.get((rank, layer)), scale, f"{result.item} rank {rank}")
                                       for layer in layers[:_TENSORS]))
                for rank in ranks[:_RANKS]
            ),
            left=_left(len(ranks) - _RANKS, "rank", len(layers) - _TENSORS, "layer"),
        )  # fmt: skip
    return None


def _column(result: Result) -> str:
    return f"{result.item}" + (f" rank {result.rank}" if result.rank is not None else "")


def _scale(found: Iterable[Apart]) -> tuple[float, float]:
    """The decades that the errors span, at least one."""
    tens = [math.log10(each.error) for each in found if each.error and math.isfinite(each.error)] or [0.0]
    return min(tens), max(*tens, min(tens) + 1)


def _cell(told: Apart | None, scale: tuple[float, float], place: str = "") -> Cell:
    if told is None:
        return Cell()
    where = f"{told.tensor} in {place or _column(told.result)}"
    if told.error is None:
        return Cell(heat=1.0, text="≠", title=f"{where}: differs")
    least, most = scale
    tens = math.log10(told.error) if told.error and math.isfinite(told.error) else most
    return Cell(
        heat=round(0.15 + 0.85 * (tens - least) / (most - least), 3), text=_short(told.error),
        title=f"{where}: {told.error:.1e}",
    )  # fmt: skip


def _short(error: float) -> str:
    """`3e-7`, `2`, `4e5`, `inf`."""
    digits, _, tens = f"{error:.0e}".partition("e")
    return f"{digits}e{int(tens)}" if tens and int(tens) else digits


def _left(rows: int, row: str, columns: int, column: str) -> str:
    said = [counted(number, thing) for number, thing in ((rows, row), (columns, column)) if number > 0]
    return f"and {' and '.join(said)} more" if said else ""


def frame(title: str) -> dict[str, Any]:
    """What every page has: its title, its style and its script, and the policy that allows only this script."""
    script, style = _asset("report.js"), _asset("report.css")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    return {"title": title, "script": script, "style": style, "digest": digest}


@functools.cache
def _asset(name: str) -> str:
    return resources.files("contracts.court").joinpath("pages", name).read_text(encoding="utf-8")


@functools.cache
def template(name: str) -> Any:
    # jinja2 takes 50 ms to import; a command that draws no page does not pay for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("contracts.court", "pages"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["seconds"] = _seconds
    return environment.get_template(name)


def _seconds(value: float) -> str:
    """`0.25 s`, `12 s`, `3 min 20 s`; empty for what took no time."""
    if value < 0.0005:
        return ""
    if value < 10:
        return f"{value:.2g} s"
    return f"{value:.0f} s" if value < 100 else f"{value // 60:.0f} min {value % 60:.0f} s"
