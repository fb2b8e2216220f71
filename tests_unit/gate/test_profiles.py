"""Profiles: which cases a word plans, what it leaves outside, and on which recipes a stack is asked."""

from dataclasses import replace

import pytest

from contracts.contract import Contract, Law, Tier, Untested
from contracts.court import profiles
from contracts.spec import Abilities, Refused
from contracts.spec.records import Item, Statement
from tests_unit._parties.law import LAW

GRAMMAR: dict[str, set[str]] = {  # profile → ids it plans, written out where it is not a whole family
    "TOPO-02[pp13-on-52]": {"TOPO-02"},
    "TOPO-02": {"TOPO-02", "TOPO-02a", "TOPO-02b"},
    "TOPO-02b": {"TOPO-02b"},
    " PAT-01a , TOPO-02b ,": {"PAT-01a", "TOPO-02b"},
    "PAT-01a,PAT-01a": {"PAT-01a"},
    "PREC-04b": {"PREC-04b"},
}


@pytest.mark.parametrize("profile", GRAMMAR)
def test_a_profile_selects_by_item_id_and_prefix(profile: str) -> None:
    plan = profiles.plan(LAW, profile)
    assert {item.id for item in plan.items} == GRAMMAR[profile]
    assert len(set(plan.items)) == len(plan.items)
    assert {each for each in plan.outside if "[" not in each} == set(LAW.ids()) - GRAMMAR[profile]
    assert set(plan.promises) == GRAMMAR[profile]


def test_the_named_profiles_select_their_tiers_and_families() -> None:
    planned = {name: {item.id for item in profiles.plan(LAW, name).items} for name in profiles.NAMED}
    assert planned["full"] == set(LAW.ids())
    tiers = {name: {id for id in LAW.ids() if _tier(id) == name} for name in ("unit", "gpu", "dist")}
    assert {name: planned[name] for name in tiers} == tiers
    assert planned["launch"] <= planned["unit"] - set(LAW.untested)
    families = {"PAT", "NAME", "REC", "PREC", "ARGV", "ENV", "TOPO"}
    launch = {id for id, each in LAW.contracts.items() if each.family in families and not each.of_numbers}
    assert planned["launch"] == {id for id in launch if _tier(id) == "unit"}


def test_the_profiles_launch_machine_and_numeric_are_all_contracts_of_one_process() -> None:
    planned = profiles.plan(LAW, profiles.ONE_PROCESS).items
    every = [item for item in profiles.plan(LAW, "unit").items if item.id in LAW.contracts]
    assert set(planned) == set(every)
    assert len(planned) == len(set(planned))


def test_the_profile_dist4_lists_cases_of_more_ranks_as_outside() -> None:
    plan = profiles.plan(LAW, "dist4")
    assert {"PAR-01a", "PREF-03"} <= set(plan.promises)
    assert "PREF-03[16-mib-on-8]" in plan.outside
    assert Item(id="PREF-03", case="16-mib-on-8") not in plan.items
    assert {LAW.contracts[item.id].ranks(item.case) for item in plan.items} == {2, 3, 4}
    assert not any(LAW.contracts[item.id].slow for item in plan.items)
    assert "COMP-07" in plan.outside
    kept = profiles.of_several_ranks(LAW, profiles.plan(LAW, "TOPO-02[pp2-tp2-on-4],dist4"))
    assert kept.items == plan.items
    assert set(kept.outside) == set(plan.outside)


def test_the_quick_profiles_are_subsets_that_any_machine_can_judge() -> None:
    quick = profiles.plan(LAW, "quick").items
    numbers = {id: each for id, each in LAW.contracts.items() if each.tier == "unit" and each.of_numbers}
    first = [item.id for item in dict.fromkeys(item.above for item in quick) if item.id in numbers]
    assert first == [id for id, each in numbers.items() if not each.slow]
    left = set(profiles.plan(LAW, "launch,machine").items) - {*quick}
    assert left
    assert all("read_pattern" in LAW.contracts[item.id].asks for item in left)
    cells = profiles.plan(LAW, "quick4").items
    assert {str(item.above) for item in cells} == profiles._CELLS, "a cell that is in the law no more"
    assert {*cells} < {*profiles.plan(LAW, "dist4").items}
    assert {LAW.contracts[item.id].ranks(item.case) for item in cells} == {4}
    assert any(not set(LAW.contracts[item.id].asks) - {"built", "train"} for item in cells)


EVERY = 1 << 20  # ranks
WORDS: dict[str, tuple[str, int, bool]] = {  # profile → its tiers, the most ranks of a case, with what has no check
    "unit": ("unit", EVERY, True),
    "gpu": ("gpu", EVERY, True),
    "dist": ("dist", EVERY, True),
    "dist4": ("dist", 4, False),  # without slow cases
    "dist4,gpu": ("dist gpu", 4, True),
}
FOR_FOUR, FOR_EIGHT = "PAR-01a[tp2-sp-ep2]", "PAR-01a[tp2-sp-ep2-fsdp2]"


@pytest.mark.parametrize("profile", WORDS)
def test_a_profile_plans_what_it_names_and_lists_the_rest(profile: str) -> None:
    """The expected plan is counted here contract by contract: each case as it was written and on its leanest recipe."""
    plan = profiles.plan(LAW, profile)
    cases = [(each, Item(id=id, case=name)) for id, each in LAW.contracts.items()
             for name in dict.fromkeys(name for case in each.cases for name in (case, each.leanest(case)))]  # fmt: skip
    wanted = {item for each, item in cases if _is_named(each, item.case, *WORDS[profile])}
    wanted |= {Item(id=id) for id, each in LAW.untested.items() if _is_named(each, "", *WORDS[profile])}
    assert {*plan.items} == wanted
    assert len(plan.items) == len(wanted)
    every = {*(item for _, item in cases), *(Item(id=id) for id in LAW.untested)}
    outside = {item for item in every if item.id in {*plan.outside} or str(item) in {*plan.outside}}
    assert outside == every - wanted
    if profile == "dist4":
        assert {FOR_FOUR, FOR_EIGHT} & {str(item) for item in plan.items} == {FOR_FOUR}


def _is_named(entry: Contract | Untested, case: str, tiers: str, ranks: int, untested: bool) -> bool:
    cut = entry.tier == "dist" and ranks < EVERY
    if entry.tier not in tiers.split() or isinstance(entry, Untested):
        return entry.tier in tiers.split() and untested and not cut
    return entry.ranks(case) <= ranks and not (cut and entry.slow)


@pytest.mark.parametrize("profile", ["GATE", "GATE-04", "gate-04", "PAT-01,GATE-0"])
def test_a_gate_id_is_refused_as_a_profile_with_an_explanation(profile: str) -> None:
    said = "names promises of the suite itself, which no stack is asked; rankproof explain GATE prints them"
    with pytest.raises(Refused, match=said):
        profiles.plan(LAW, profile)


def _tier(id: str) -> str:
    return (LAW.contracts.get(id) or LAW.untested[id]).tier


@pytest.mark.parametrize(
    ("profile", "near"),
    [
        ("lanch", "launch"),
        ("", "launch"),
        (",", "launch"),
        ("TOPO-2", "TOPO-02"),
        ("PAT-01,TOPO-99", "TOPO-0"),
        ("TOPO-02[nobody]", "TOPO-02"),
        ("topo-02", "TOPO-02"),
    ],
)
def test_a_profile_that_selects_nothing_is_refused_with_the_nearest(profile: str, near: str) -> None:
    with pytest.raises(Refused) as caught:
        profiles.plan(LAW, profile)
    assert caught.value.fields == ("profile",)
    assert near in str(caught.value)


def _check(stack: object, *case: object) -> None:
    """The promise."""


def _of_ranks(stack: object, world: int) -> None:
    """The promise of several ranks."""


def _contract(id: str, *asks: str, cases: int = 2, tier: Tier = "unit", **more: object) -> Contract:
    arguments = {f"c{n}": () for n in range(cases)}
    return Contract(id=id, check=_check, asks=asks, cases=arguments, source="here", tier=tier, **more)  # type: ignore[arg-type]


def _small() -> Law:
    law = Law()
    for each in (
        _contract("PAT-01", "blocks"),
        _contract("PAT-02", "blocks", "read_pattern"),
        _contract("MEM-01", "topology"),
        _contract("OBS-01", "topology"),
        _contract("BLK-01", "run_block"),
        _contract("BLK-02", "run_block", slow=True),
        replace(_contract("PAR-01", "train", tier="dist"), check=_of_ranks, cases={"w2": (2,), "w4": (4,), "w5": (5,)}),
        replace(_contract("PAR-02", "train", tier="dist", slow=True), check=_of_ranks, cases={"w2": (2,)}),
        _contract("KRN-01", "run_block", tier="gpu"),
        Untested(id="MEM-02", promise="Some day.", why="nobody wrote it", tier="unit"),
        Untested(id="KRN-02", promise="Some day.", why="nobody wrote it", tier="gpu"),
    ):
        law.add(each)
    return law


def _planned(law: Law, profile: str, able: Abilities | None = None) -> str:
    return " ".join(map(str, profiles.plan(law, profile, able).items))


@pytest.mark.parametrize(
    ("profile", "planned"),
    [
        ("launch", "PAT-01[c0] PAT-01[c1] PAT-02[c0] PAT-02[c1]"),
        ("machine", "MEM-01[c0] MEM-01[c1]"),
        ("numeric", "BLK-01[c0] BLK-01[c1] BLK-02[c0] BLK-02[c1]"),
        ("quick", "PAT-01[c0] PAT-01[c1] MEM-01[c0] MEM-01[c1] OBS-01[c0] OBS-01[c1] BLK-01[c0]"),
        ("gpu", "KRN-01[c0] KRN-01[c1] KRN-02"),
        ("dist", "PAR-01[w2] PAR-01[w4] PAR-01[w5] PAR-02[w2]"),
        ("dist4", "PAR-01[w2] PAR-01[w4]"),
        ("MEM", "MEM-01[c0] MEM-01[c1] MEM-02"),
        ("MEM-02", "MEM-02"),
        ("PAT-01[c1],PAT-01[c0]", "PAT-01[c0] PAT-01[c1]"),
        ("PAT-01[c1], MEM-02", "PAT-01[c1] MEM-02"),
        ("PAT-01,PAT-01[c1]", "PAT-01[c0] PAT-01[c1]"),
    ],
)
def test_each_profile_plans_its_items_of_a_small_law(profile: str, planned: str) -> None:
    assert _planned(_small(), profile) == planned


def test_the_profile_full_is_all_tiers_of_a_small_law() -> None:
    law = _small()
    everything = _planned(law, "full").split()
    assert everything == _planned(law, "unit,gpu,dist").split()
    assert len(everything) == 6 * 2 + 3 + 1 + 2 + 2
    unit = profiles.plan(law, "unit")
    assert {item.id for item in unit.items} == {"PAT-01", "PAT-02", "MEM-01", "OBS-01", "BLK-01", "BLK-02", "MEM-02"}
    assert unit.outside == ("PAR-01", "PAR-02", "KRN-01", "KRN-02")
    assert unit.claimed == unit.choices == ()


def test_a_plan_lists_what_is_outside_by_contract_or_by_case() -> None:
    law = _small()
    assert profiles.plan(law, "PAT-01[c1],dist4").outside == (
        "PAT-01[c0]", "PAT-02", "MEM-01", "OBS-01", "BLK-01", "BLK-02", "PAR-01[w5]", "PAR-02", "KRN-01", "MEM-02",
        "KRN-02",
    )  # fmt: skip
    assert profiles.plan(law, "MEM").promises == {
        "MEM-01": Statement(promise="The promise.", source="here", asks=("topology",)),
        "MEM-02": Statement(promise="Some day.", source="the law; no check yet"),
    }


WITH_RUNGS = {
    "leaner": {"c0@pairs": (), "c0@dense": ()},
    "needs": {"c0": frozenset({"mamba"}), "c1": frozenset({"tp"})},
}


def _ladder() -> Law:
    law = Law()
    law.add(_contract("OPT-01", "train", **WITH_RUNGS))
    law.add(_contract("OPT-02", "train"))
    return law


def _able(*has: str) -> Abilities:
    return Abilities(has=frozenset({"attention", *has}))


@pytest.mark.parametrize(
    ("profile", "able", "planned", "outside", "claimed"),
    [
        ("OPT-01", None, "OPT-01[c0] OPT-01[c0@dense] OPT-01[c1]", ["OPT-02"], []),
        ("OPT-01[c0]", None, "OPT-01[c0]", ["OPT-01[c0@dense]", "OPT-01[c1]", "OPT-02"], []),
        ("OPT-01[c0@dense]", None, "OPT-01[c0@dense]", ["OPT-01[c0]", "OPT-01[c1]", "OPT-02"], []),
        ("OPT-01[c0@pairs]", None, "OPT-01[c0@pairs]",
         ["OPT-01[c0]", "OPT-01[c0@dense]", "OPT-01[c1]", "OPT-02"], []),
        ("OPT-01,OPT-01[c0@pairs]", None, "OPT-01[c0] OPT-01[c0@dense] OPT-01[c0@pairs] OPT-01[c1]", ["OPT-02"], []),
        ("OPT-01", _able("mamba", "tp"), "OPT-01[c0] OPT-01[c0@dense] OPT-01[c1]", ["OPT-02"],
         ["OPT-01[c0]", "OPT-01[c0@dense]", "OPT-01[c1]"]),
        ("full", _able("mamba"), "OPT-01[c0] OPT-01[c0@dense] OPT-01[c1] OPT-02[c0] OPT-02[c1]", [],
         ["OPT-01[c0]", "OPT-01[c0@dense]"]),
        ("OPT-01", replace(_able("mamba"), claims=False), "OPT-01[c0] OPT-01[c0@dense] OPT-01[c1]", ["OPT-02"], []),
    ],
)  # fmt: skip
def test_a_case_is_asked_on_the_richest_recipe_and_on_the_leanest(
    profile: str, able: Abilities | None, planned: str, outside: list[str], claimed: list[str]
) -> None:
    plan = profiles.plan(_ladder(), profile, able)
    assert (" ".join(map(str, plan.items)), [*plan.outside], [*plan.claimed]) == (planned, outside, claimed)


def test_a_case_that_no_recipe_makes_possible_is_planned_with_the_declared_lack() -> None:
    (choice,) = profiles.plan(_ladder(), "OPT-01", _able("mamba")).choices
    assert (choice.item, choice.instead, choice.kind) == ("OPT-01[c1]", (), "adapter")
    assert choice.why == "tp: its abilities say nothing about it"
    none = profiles.plan(_ladder(), "OPT-01", _able())
    assert _planned(_ladder(), "OPT-01", _able()) == "OPT-01[c0@dense] OPT-01[c1]"
    told = [(each.item, each.instead) for each in none.choices]
    assert told == [("OPT-01[c0]", ("OPT-01[c0@dense]",)), ("OPT-01[c0@dense]", ()), ("OPT-01[c1]", ())]


def test_the_plan_of_several_ranks_leaves_contracts_of_one_process_outside() -> None:
    law = _small()
    plan = profiles.of_several_ranks(law, profiles.plan(law, "PAT-01[c0],MEM-02,dist4"))
    assert " ".join(map(str, plan.items)) == "PAR-01[w2] PAR-01[w4]"
    assert [*plan.promises] == ["PAR-01"]
    assert plan.outside == (
        "PAT-02", "MEM-01", "OBS-01", "BLK-01", "BLK-02", "PAR-01[w5]", "PAR-02", "KRN-01", "KRN-02", "PAT-01",
        "MEM-02",
    )  # fmt: skip
    both = _ladder()
    both.add(replace(_contract("PAR-03", "train", tier="dist", **WITH_RUNGS), check=_of_ranks))
    whole = profiles.plan(both, "OPT-01,PAR-03", _able())
    assert [each.item for each in whole.choices] == [
        f"{id}[{case}]" for id in ("OPT-01", "PAR-03") for case in ("c0", "c0@dense", "c1")
    ]
    assert profiles.of_several_ranks(both, whole).choices == whole.choices[3:]
    able = profiles.plan(both, "OPT-01,PAR-03", _able("mamba"))
    assert profiles.of_several_ranks(both, able).claimed == ("PAR-03[c0]", "PAR-03[c0@dense]")
    with pytest.raises(Refused, match=r"^ranks = 'PAT-01, PAT-02, MEM-01': is judged by one process"):
        profiles.of_several_ranks(law, profiles.plan(law, "launch,machine,OBS"))


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("lanch", ["launch"]), ("pat-01", ["PAT-01", "PAT-02", "PAR-01"]), ("PAT-01[c2]", ["PAT-01[c1]", "PAT-01[c0]"]),
        ("pat-01[c1", ["PAT-01[c1]", "PAT-01[c0]"]), ("MEM-02[x]", ["MEM-02", "MEM-01", "MEM"]),
        ("zzzzzzzz", [*profiles.NAMED]),
    ],
)  # fmt: skip
def test_an_unknown_case_is_refused_with_the_nearest_cases_and_an_unknown_id_with_the_nearest_ids(
    text: str, near: list[str]
) -> None:
    assert profiles.nearest(_small(), text) == near
    assert len(profiles.nearest(LAW, "TOPO-02[nobody]")) == 3
