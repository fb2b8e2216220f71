"""Profiles: which contracts a verdict is about. A profile becomes a plan before anything runs.

A profile is a comma-separated list. Each word names a group of families (`launch`, `machine`, `numeric`), a tier, all
contracts (`full`), ids by their beginning (`TOPO`, `PAT-0`, `ARGV-03b`) or a single case (`TOPO-02[pp2-tp2]`). What a
profile does not plan it lists as outside: a whole contract by its id, the other cases of one planned in part by theirs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from contracts.contract import TIERS, Contract, Law, Untested
from contracts.spec.errors import refuse
from contracts.spec.records import Item, Plan, Statement

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "launch": ("GATE", "PAT", "NAME", "REC", "PREC", "ARGV", "ENV", "TOPO"),
    "machine": ("GATE", "PREF", "INST", "STOR", "RCPT", "CMP", "MANI", "MEM", "KRN", "GOOD"),
}

NAMED: Mapping[str, str] = {
    "launch": "what is emitted before anything is built: patterns, names, recipes, argv, environment, meshes; judged "
    "contracts of one process",
    "machine": "what surrounds the step: node, disks, installed stack, receipts, comparison, manifests, budgets; "
    "judged contracts of one process",
    "numeric": "blocks, model, optimizer, checkpoints, by their numbers; judged contracts of one process, with torch",
    "quick": "contracts of one process without torch, and of each of the others that is not slow the first case; what "
    "only Megatron-Core's own parser answers is outside",
    "unit": "every contract of one CPU process, those without a check included",
    "gpu": "every contract that needs one GPU",
    "dist": "every contract that needs several ranks",
    "dist4": "contracts that four ranks judge in seconds; larger cases and slow contracts are outside",
    "quick4": "a handful of cells that four ranks judge: meshes, gradients, updates, a pipeline, checkpoints, traffic",
    "full": "every contract",
}

DEFAULT = "launch,machine"
ONE_PROCESS = "launch,machine,numeric"
"""Every contract of one CPU process that has a check."""
_FOUR = 4
_CELLS = frozenset(
    {
        "ENV-06a[on-4]",
        "TOPO-05d[own-axis-pp2-tp2-on-4]",
        "TOPO-05d[borrowed-tp2-ep4-etp1-on-4]",
        "PAR-01a[tp2-sp-ep2]",
        "PAR-01a[borrowed-ep4-fsdp]",
        "PAR-01g[cp2-pp2]",
        "PAR-02a[hsdp-2x2-muon]",
        "PAR-08a[beside-tp-sp]",
        "CKPT-01e[pp2-tp2-sp]",
        "TRAF-01[ep2-fsdp2]",
        "PAR-01e[tp2-sp-fsdp2]",
        "PAR-02e[hsdp-2x2]",
        "CKPT-01h[hsdp-2x2]",
    }
)
"""One or two layouts of four ranks for each thing that ranks do; some of them every transformer can be asked."""

_Entry = Contract | Untested


def plan(law: Law, profile: str) -> Plan:
    """The cases that a profile demands, in the order of the law, and the ids and cases that it leaves outside.

    Raises:
        Refused: for a profile that selects nothing, with the nearest names.
    """
    chosen = _chooser(law, profile)
    items: list[Item] = []
    promises: dict[str, Statement] = {}
    left: dict[str, list[str]] = {}
    entries: list[_Entry] = [*law.contracts.values(), *law.untested.values()]
    for entry in entries:
        cases = tuple(entry.cases) if isinstance(entry, Contract) else ("",)
        picked = [Item(id=entry.id, case=case) for case in cases if chosen(entry, case)]
        if picked:
            items += picked
            promises[entry.id] = _statement(entry)
            left[entry.id] = [str(Item(id=entry.id, case=case)) for case in cases if not chosen(entry, case)]
    if not items:
        near = difflib.get_close_matches(profile, [*NAMED, *law.ids()], n=3) or [*NAMED]
        raise refuse("profile", profile, "selects no contract", f"the nearest are {', '.join(near)}")
    outside = tuple(each for id in law.ids() for each in left.get(id, [id]))
    return Plan(items=tuple(items), outside=outside, promises=promises)


def of_several_ranks(law: Law, plan: Plan) -> Plan:
    """The part of a plan that several ranks judge; the rest of it is outside.

    Raises:
        Refused: when nothing is.
    """
    entries: dict[str, _Entry] = {**law.contracts, **law.untested}
    kept = {id: statement for id, statement in plan.promises.items() if entries[id].tier == "dist"}
    if not kept:
        first = ", ".join(list(plan.promises)[:3])
        raise refuse("ranks", first, "is judged by one process", "choose by --profile dist, or leave --ranks out")
    alone = [id for id in plan.promises if id not in kept]
    cut = {str(Item(id=id, case=case)) for id in alone if id in law.contracts for case in law.contracts[id].cases}
    outside = (*(each for each in plan.outside if each not in cut), *alone)
    return Plan(items=tuple(item for item in plan.items if item.id in kept), outside=outside, promises=kept)


def _statement(entry: _Entry) -> Statement:
    if isinstance(entry, Untested):
        return Statement(promise=entry.promise, source="the law; no check yet")
    return Statement(promise=entry.promise, source=entry.source, asks=entry.asks)


def _chooser(law: Law, profile: str) -> Callable[[_Entry, str], bool]:
    words = [word.strip() for word in profile.split(",") if word.strip()]
    for word in words:
        if word not in NAMED and not any(_matches(word, id, case) for id in law.ids() for case in _cases(law, id)):
            near = difflib.get_close_matches(word, [*NAMED, *law.ids()], n=3) or [*NAMED]
            raise refuse("profile", word, "selects no contract", f"the nearest are {', '.join(near)}")
    return lambda entry, case: any(_chosen(word, entry, case) for word in words)


def _chosen(word: str, entry: _Entry, case: str) -> bool:
    if word in (*_FAMILIES, "numeric"):
        if not isinstance(entry, Contract) or entry.tier != "unit":
            return False
        return entry.of_numbers if word == "numeric" else not entry.of_numbers and entry.family in _FAMILIES[word]
    if word == "quick":
        if not isinstance(entry, Contract) or entry.tier != "unit" or "read_pattern" in entry.asks:
            return False  # patterns are read by a launcher's own parser, which a first clone does not have
        return not entry.of_numbers or (not entry.slow and case == next(iter(entry.cases)))
    if word == "quick4":
        return f"{entry.id}[{case}]" in _CELLS
    if word == "dist4":
        return isinstance(entry, Contract) and entry.tier == "dist" and not entry.slow and entry.ranks(case) <= _FOUR
    if word in TIERS:
        return entry.tier == word
    return word == "full" or _matches(word, entry.id, case)


def _cases(law: Law, id: str) -> tuple[str, ...]:
    return tuple(law.contracts[id].cases) if id in law.contracts else ("",)


def _matches(word: str, id: str, case: str) -> bool:
    return word == f"{id}[{case}]" if word.endswith("]") else id.startswith(word)
