"""Profiles: which contracts a verdict is about. A profile becomes a plan before anything runs.

A profile is a comma-separated list. Each word names a group of families (`launch`, `machine`, `numeric`), a tier, all
contracts (`full`), ids by their beginning (`TOPO`, `PAT-0`, `ARGV-03b`) or a single case (`TOPO-02[pp2-tp2]`,
`OPT-01b[muon@pairs]`). What a profile does not plan it lists as outside: a whole contract by its id, the other cases of
one planned in part by theirs.

A case about a whole model can be asked on leaner recipes (`contracts.spec.ladder`). Which of them a stack is asked
follows from the abilities that it declares; the choice is made here, before anything runs, and is part of the plan.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.contract import TIERS, Contract, Law, Untested
from contracts.court.promises import FAMILY
from contracts.spec import Abilities, Absence, refuse
from contracts.spec.records import Choice, Item, Plan, Statement

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "launch": ("PAT", "NAME", "REC", "PREC", "ARGV", "ENV", "TOPO"),
    "machine": ("PREF", "INST", "STOR", "RCPT", "CMP", "MANI", "MEM", "KRN", "GOOD"),
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


def plan(law: Law, profile: str, abilities: Abilities | None = None) -> Plan:
    """The cases that a profile demands, in the order of the law, and the ids and cases that it leaves outside.

    A case with rungs is asked on the richest that the abilities allow and on the leanest; without declared abilities,
    as it was written and on the leanest. A word of the profile that names a single item plans exactly that.

    Raises:
        Refused: for a profile that selects nothing, with the nearest names.
    """
    words = _words(law, profile)
    items: list[Item] = []
    choices: list[Choice] = []
    promises: dict[str, Statement] = {}
    left: dict[str, list[str]] = {}
    entries: list[_Entry] = [*law.contracts.values(), *law.untested.values()]
    for entry in entries:
        found = list(_asked(entry, words, abilities))
        picked = [Item(id=entry.id, case=name) for each in found for name in each.names]
        if picked:
            items += picked
            choices += [choice for each in found for choice in each.choice]
            promises[entry.id] = _statement(entry)
            left[entry.id] = [str(Item(id=entry.id, case=name)) for each in found for name in each.outside]
    if not items:
        raise refuse("profile", profile, "selects no contract", f"the nearest are {', '.join(nearest(law, profile))}")
    outside = tuple(each for id in law.ids() for each in left.get(id, [id]))
    claiming = abilities if abilities is not None and abilities.claims else None
    claimed = () if claiming is None else tuple(str(item) for item in items if _claims(law, item, claiming))
    return Plan(items=tuple(items), outside=outside, promises=promises, choices=tuple(choices), claimed=claimed)


def beginnings(profile: str) -> tuple[str, ...]:
    """How the ids begin that a profile can select; empty where any can."""
    found: list[str] = []
    for word in (each.strip() for each in profile.split(",")):
        if word in NAMED and word not in _FAMILIES:
            return ()
        found += [f"{family}-" for family in _FAMILIES[word]] if word in _FAMILIES else [word.partition("[")[0]]
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is planned of one case: the names under which it is asked, what stays outside, and why not as written."""

    names: tuple[str, ...]
    outside: tuple[str, ...] = ()
    choice: tuple[Choice, ...] = ()


def _asked(entry: _Entry, words: Sequence[str], abilities: Abilities | None) -> Iterator[_Asked]:
    if isinstance(entry, Untested):
        yield _Asked(names=("",)) if _widely(words, entry, "") else _Asked(names=())
        return
    for case in entry.cases:
        alone = tuple(name for name in (case, *entry.rungs(case)) if f"{entry.id}[{name}]" in words)
        wide = _widely(words, entry, case)
        names, choice = _on_rungs(entry, case, abilities) if wide else ((), ())
        by_name = {name: _ruled_out(entry, name, abilities) for name in alone if name not in names}
        named = tuple(each for each in by_name.values() if each is not None)
        choice = (*(each for each in choice if each.item not in {one.item for one in named}), *named)
        asked = tuple(dict.fromkeys((*names, *alone)))
        both = dict.fromkeys((case, entry.leanest(case)))
        yield _Asked(
            names=asked, outside=() if wide else tuple(each for each in both if each not in asked), choice=choice
        )


def _ruled_out(entry: Contract, name: str, abilities: Abilities | None) -> Choice | None:
    """Why an item that is asked for by its name may be declined: no leaner recipe takes its place."""
    why = _absence(entry, name, abilities)
    item = str(Item(id=entry.id, case=name))
    return None if why is None else Choice(item=item, instead=(item,), kind=why.kind, why=str(why))


def _on_rungs(entry: Contract, case: str, abilities: Abilities | None) -> tuple[tuple[str, ...], tuple[Choice, ...]]:
    """The rungs on which a case is asked, and why it is not asked as it was written, or on the leanest either."""
    ladder = (case, *entry.rungs(case))
    lacking = {name: _absence(entry, name, abilities) for name in ladder}
    named = {name: str(Item(id=entry.id, case=name)) for name in ladder}
    leanest = entry.leanest(case)
    richest = next((name for name in ladder if lacking[name] is None), leanest)
    names = tuple(dict.fromkeys((richest, leanest if ladder.index(richest) < ladder.index(leanest) else richest)))
    found = []
    for name in dict.fromkeys((case, *names)):
        if (why := lacking[name]) is not None:
            instead = () if name in names else tuple(named[each] for each in names)
            found.append(Choice(item=named[name], instead=instead, kind=why.kind, why=str(why)))
    return names, tuple(found)


def _claims(law: Law, item: Item, abilities: Abilities) -> bool:
    """Whether declared abilities say that an item can be asked; those of contracts without a ladder say nothing."""
    entry = law.contracts.get(item.id)
    return entry is not None and bool(entry.needs) and _absence(entry, item.case, abilities) is None


def _absence(entry: Contract, name: str, abilities: Abilities | None) -> Absence | None:
    """The reason against asking a case; None if it can be asked, or nothing is declared."""
    return abilities.absence(entry.features(name), entry.asks) if abilities is not None else None


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
    cut = {str(Item(id=id, case=case)) for id in alone if id in law.contracts for case in law.contracts[id].asked}
    outside = (*(each for each in plan.outside if each not in cut), *alone)
    items = tuple(item for item in plan.items if item.id in kept)
    named = {str(item) for item in items}
    choices = tuple(each for each in plan.choices if named & {each.item, *each.instead})
    claimed = tuple(each for each in plan.claimed if each in named)
    return replace(plan, items=items, outside=outside, promises=kept, choices=choices, claimed=claimed)


def _statement(entry: _Entry) -> Statement:
    if isinstance(entry, Untested):
        return Statement(promise=entry.promise, source="the law; no check yet")
    return Statement(promise=entry.promise, source=entry.source, asks=entry.asks)


def _words(law: Law, profile: str) -> tuple[str, ...]:
    """The words of a profile, each of which selects something."""
    words = tuple(dict.fromkeys(word.strip() for word in profile.split(",") if word.strip()))
    for word in words:
        if word.upper().startswith(FAMILY):
            raise refuse("profile", word, "names promises of the suite itself, which no stack is asked",
                         f"rankproof explain {FAMILY} prints them and the tests that hold them")  # fmt: skip
        if word not in NAMED and not any(_matches(word, id, case) for id in law.ids() for case in _cases(law, id)):
            raise refuse("profile", word, "selects no contract", f"the nearest are {', '.join(nearest(law, word))}")
    return words


def nearest(law: Law, text: str) -> list[str]:
    """The nearest names of a misspelt one: cases of the contract that is named, or else profiles, families and ids."""
    id, bracket, _ = text.partition("[")
    known = {each.lower(): each for each in (*NAMED, *(each.partition("-")[0] for each in law.ids()), *law.ids())}
    found = known.get(id.lower(), "")
    if bracket and found in law.contracts:
        names = [f"{found}[{case}]" for case in _cases(law, found)]
        return difflib.get_close_matches(f"{found}{text[len(id) :]}", names, n=3, cutoff=0.0)
    close = difflib.get_close_matches(id.lower(), known, n=3)
    return [known[each] for each in close] or [*NAMED]


def _widely(words: Sequence[str], entry: _Entry, case: str) -> bool:
    """Whether a word that is no single item selects a case."""
    return any(_chosen(word, entry, case) for word in words if not word.endswith("]"))


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
    return tuple(law.contracts[id].asked) if id in law.contracts else ("",)


def _matches(word: str, id: str, case: str) -> bool:
    return word == f"{id}[{case}]" if word.endswith("]") else id.startswith(word)
