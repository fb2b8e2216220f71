"""A small recorded run, on which the gate's verdict is judged, and a deviation declared in it."""

from typing import Literal

from contracts.spec.records import (
    SCHEMA,
    Deviation,
    Header,
    Item,
    Outcome,
    Plan,
    Result,
    Run,
    Statement,
    Subject,
)

TODAY = "2026-06-15"
A, B = Item(id="TOPO-02", case="pp2-tp2"), Item(id="TOPO-02", case="pp2-ep2")
UNTESTED = Item(id="PAT-12")


def recorded(
    *came: tuple[Item, Outcome],
    plan: tuple[Item, ...] | None = None,
    deviations: tuple[Deviation, ...] = (),
    offers: frozenset[str] = frozenset({"topology"}),
    cut: tuple[str, ...] = (),
) -> Run:
    """A run of two planned items, or of those with results, with a message for each outcome. `cut`: cases outside."""
    planned = plan if plan is not None else tuple(item for item, _ in came)
    promise = Statement(promise="DP divides the world by every other axis.", source="bringup", asks=("topology",))
    return Run(
        header=Header(
            schema=SCHEMA, suite="1", revision="0", profile="launch", started="2026-06-15T00:00:00+00:00",
            subject=Subject(name="mine", version="3", origin="my.stack:Mine", offers=offers, layouts=frozenset()),
            assistants=(), command=("rankproof", "check"), python="3.11", platform="linux",
        ),
        plan=Plan(items=planned, outside=("ARGV-01", *cut), promises={item.id: promise for item in planned}),
        results=tuple(
            Result(id=item.id, case=item.case, outcome=outcome, words="" if outcome == "holds" else "some words")
            for item, outcome in came
        ),
        deviations=deviations,
    )  # fmt: skip


def declared(
    case: str = "pp2-*",
    expires: str = "2026-12-31",
    id: str = "TOPO-02",
    says: str = "some words",
    tensors: tuple[str, ...] = (),
    device: Literal["", "cpu", "cuda"] = "",
    versions: tuple[str, ...] = (),
) -> Deviation:
    return Deviation(
        id=id, case=case, reason="the mesh is rebuilt in May", issue="#7", owner="mesh", expires=expires, says=says,
        tensors=tensors, device=device, versions=versions,
    )  # fmt: skip
