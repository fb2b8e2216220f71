"""The ladder of recipes, the abilities of a stack, and the plan that follows from both."""

import datetime
from dataclasses import replace

import pytest

from contracts.court import profiles
from contracts.court.judge import judge
from contracts.court.verdict import verdict
from contracts.spec import (
    FEATURES,
    Abilities,
    Absence,
    Degrees,
    Execution,
    Mhc,
    Mla,
    Moe,
    Mtp,
    Recipe,
    Refused,
    codec,
    questions,
    rung_of,
    rungs,
)
from contracts.spec.needs import features
from contracts.spec.records import Item
from contracts.stacks.megatron.abilities import ABILITIES
from contracts.stacks.reference.stack import Reference
from contracts.stacks.serve import introduce
from contracts.stacks.torchtitan.abilities import ABILITIES as TITAN
from contracts.stacks.transformers.abilities import ABILITIES as TRANSFORMERS
from tests_unit._parties.law import LAW
from tests_unit.gate._recorded_run import recorded

RICH = Recipe(
    name="rich", family="test", pattern="AEMR", depth=6, hidden=24, ffn_hidden=40, heads=4, kv_groups=2, seq_length=16,
    vocab=61, moe=Moe(experts=12, top_k=3, z_loss=0.1, score="sigmoid", selection_bias=True), mtp=Mtp(), mhc=Mhc(),
    mla=Mla(), dtype="fp32",
)  # fmt: skip


def test_each_leaner_recipe_needs_fewer_features_than_the_one_before() -> None:
    found = rungs(RICH, frozenset())
    assert [*found] == ["hybrid", "pairs", "dense", "plain"]
    assert [rung_of(each) for each in found.values()] == [*found]
    hybrid, pairs, dense, plain = (features(each) for each in found.values())
    assert {"attention", "mamba", "experts", "softmax", "gqa"} <= hybrid
    assert not {"qk-norm"} & hybrid
    assert "qk-norm" in pairs
    assert "mamba" not in pairs
    assert "experts" not in dense
    assert plain == dense - {"qk-norm"}
    for each in (hybrid, pairs, dense):
        assert not {"recurrent", "z-loss", "sigmoid", "mla", "prediction-heads", "hyper-connections"} & each


@pytest.mark.parametrize(
    ("needs", "names"),
    [
        (("experts",), ["hybrid", "pairs"]),
        (("mamba",), ["hybrid"]),
        (("recurrent",), []),
        (("z-loss",), ["hybrid", "pairs"]),
        (("sigmoid", "selection-bias"), ["hybrid", "pairs"]),
        (("prediction-heads",), ["hybrid", "pairs", "dense", "plain"]),
        (("checkpoint",), ["hybrid", "pairs", "dense", "plain"]),  # not a matter of the recipe
    ],
)
def test_a_leaner_recipe_keeps_the_features_that_the_case_is_about(needs: tuple[str, ...], names: list[str]) -> None:
    found = rungs(RICH, frozenset(needs))
    assert [*found] == names
    for each in found.values():
        assert {*needs} & features(RICH) <= features(each)


def test_the_leanest_recipe_has_a_leaner_one_only_without_a_feature_it_may_shed() -> None:
    plain = rungs(RICH, frozenset())["plain"]
    assert rungs(plain, frozenset()) == {}
    assert [*rungs(plain, frozenset(), sheds=frozenset({"packed"}))] == ["dense"]
    assert rungs(replace(RICH, pattern="AE|MR", depth=4), frozenset()) == {}


def test_a_layout_is_needed_only_if_experts_are_parallel() -> None:
    def of(**degrees: int) -> frozenset[str]:
        return features(RICH, Execution(world=4, degrees=Degrees(**degrees)))  # type: ignore[arg-type]  # no sp

    assert not {"own-axis", "borrowed"} & of(tp=2, etp=1)
    assert {"tp", "etp", "dp", "tp-without-sp", "tp-without-fsdp"} <= of(tp=2, etp=1)
    assert {"own-axis", "ep", "ep-without-fsdp"} <= of(ep=2)
    assert "etp-without-ep" in of(tp=2, etp=1)
    assert not {"ep-without-fsdp", "etp-without-ep", "tp-without-fsdp"} & of(
        tp=4, ep=4, etp=1
    )  # no rank but those of tp


def test_declared_abilities_say_whether_stack_adapter_or_device_lacks_a_feature() -> None:
    lacks = (
        Absence(features=frozenset({"mamba", "packed"}), kind="adapter", reason="they were not tried"),
        Absence(features=frozenset({"fp8"}), kind="device", reason="no card has it"),
        Absence(features=frozenset({"recompute"}), kind="stack", reason="steps do not", asked=frozenset({"train"})),
    )
    able = Abilities(has=frozenset({"mamba", "packed", "attention", "recompute"}), lacks=lacks)
    assert able.absence({"mamba"}) is None
    assert able.absence({"mamba", "packed"}) == lacks[0]
    assert able.absence({"mamba", "packed", "fp8"}) == lacks[1]
    assert able.absence({"recompute"}, ("run_model",)) is None
    assert able.absence({"recompute"}, ("built", "train")) == lacks[2]
    missing = able.absence({"muon"})
    assert (missing.kind, missing.features) == ("adapter", frozenset({"muon"}))
    assert codec.loads(Abilities, codec.dumps(able)) == able


def test_a_stack_can_declare_that_it_has_nothing_for_a_question() -> None:
    none = Absence(features=frozenset(), kind="stack", reason="it plans none", asked=frozenset({"seams", "kernel"}))
    able = Abilities(has=frozenset({"attention"}), lacks=(none,))
    assert able.absence({"attention"}, ("built", "seams")) == none
    assert able.absence((), ("kernel",)) == none
    assert able.absence({"attention"}, ("built", "train")) is None
    assert able.absence({"attention"}) is None
    choices = profiles.plan(LAW, "KRN-01d", able).choices
    assert {each.why for each in choices} == {"kernel, seams: it plans none"}
    assert {each.kind for each in choices} == {"stack"}
    with pytest.raises(Refused, match="names no feature and no question"):
        Abilities(has=frozenset(), lacks=(Absence(features=frozenset(), kind="stack", reason="it has none"),))


@pytest.mark.parametrize("able", [ABILITIES, TITAN, TRANSFORMERS])
def test_a_declared_lack_names_only_existing_questions(able: Abilities) -> None:
    assert frozenset().union(*(each.asked for each in able.lacks)) <= questions().keys()


@pytest.mark.parametrize("able", [ABILITIES, TITAN, TRANSFORMERS])
def test_features_that_whole_models_lack_do_not_exclude_single_blocks(able: Abilities) -> None:
    """A block by itself is asked whatever other blocks its recipe has; its adapter says what it lacks."""
    assert not profiles.plan(LAW, "BLK-01a,BLK-03a,BLK-03k,MOE-02b,MOE-05a", able).choices


def test_wrong_abilities_are_refused_with_every_fault() -> None:
    with pytest.raises(Refused) as caught:
        Abilities(
            has=frozenset({"mamba3", "muon"}),
            lacks=(Absence(features=frozenset({"muon"}), kind="case", reason=" "),),
        )
    text = str(caught.value)
    for words in ("mamba3", "is also lacking altogether", "is empty", "is no lack of a stack"):
        assert words in text


def lacking(*features: str) -> Abilities:
    """A stack with every feature but these."""
    lacks = tuple(Absence(features=frozenset({each}), kind="stack", reason="nobody wrote it") for each in features)
    return Abilities(has=frozenset(FEATURES) - {*features}, lacks=lacks)


NOT_BOTH = Absence(features=frozenset({"mamba", "adamw"}), kind="adapter", reason="they were not tried")
LADDERS: dict[str, tuple[Abilities, tuple[str, ...], str]] = {  # the rungs of OPT-01b[muon], and why not as written
    "every feature": (lacking(), ("muon", "muon@dense"), ""),
    "no recurrent block": (lacking("recurrent"), ("muon@hybrid", "muon@dense"), "recurrent: nobody wrote it"),
    "nor Mamba": (lacking("recurrent", "mamba"), ("muon@pairs", "muon@dense"), "nobody wrote it"),
    "no experts either": (lacking("recurrent", "mamba", "experts"), ("muon@dense",), "nobody wrote it"),
    "not with another optimizer": (
        replace(lacking("recurrent"), lacks=(*lacking("recurrent").lacks, NOT_BOTH)),
        ("muon@hybrid", "muon@dense"), "recurrent: nobody wrote it",
    ),
    "nothing of it": (lacking("attention"), ("muon@dense",), "attention: nobody wrote it"),
    "nothing declared": (Abilities(has=frozenset()), ("muon@dense",), "its abilities say nothing about it"),
}  # fmt: skip


@pytest.mark.parametrize("name", LADDERS)
def test_abilities_choose_the_recipes_of_the_plan(name: str) -> None:
    able, asked, why = LADDERS[name]
    plan = profiles.plan(LAW, "OPT-01b", able)
    assert tuple(each.case for each in plan.items if each.case.partition("@")[0] == "muon") == asked
    reasons = [each.why for each in plan.choices if each.item == "OPT-01b[muon]"]
    assert len(reasons) == (asked[0] != "muon")
    assert all(why in each for each in reasons)
    ruled_out = {each.item for each in plan.choices}
    assert all((f"OPT-01b[{each}]" in plan.claimed) is not (f"OPT-01b[{each}]" in ruled_out) for each in asked)


def test_a_case_that_is_named_alone_is_planned_on_the_named_recipe() -> None:
    for name in ("muon", "muon@pairs"):
        assert profiles.plan(LAW, f"OPT-01b[{name}]", ABILITIES).items == (Item(id="OPT-01b", case=name),)
    assert "OPT-01b[muon@dense]" in profiles.plan(LAW, "OPT-01b[muon]").outside


def test_a_case_named_alone_is_asked_even_if_the_stack_declares_to_lack_it() -> None:
    named = "OPT-04c[sparse]"
    plan = profiles.plan(LAW, named, ABILITIES)
    (choice,) = plan.choices
    assert (choice.item, choice.instead, choice.kind) == (named, (named,), "device")
    declined = recorded((plan.items[0], "not offered"), offers=frozenset({"built", "train"}))
    subject = replace(declined.header.subject, abilities=ABILITIES)
    run = replace(declined, header=replace(declined.header, subject=subject), plan=plan)
    assert not verdict(run, datetime.date(2026, 1, 1)).faults
    alongside = profiles.plan(LAW, f"OPT-04c,{named}", ABILITIES)
    assert [each.item for each in alongside.choices].count(named) == 1


def test_megatron_is_asked_only_recipes_that_it_can_build() -> None:
    plan = profiles.plan(LAW, "OPT-01b", ABILITIES)
    assert {"OPT-01b[adamw@hybrid]", "OPT-01b[adamw@pairs]"} <= {*plan.claimed}
    muon = [each for each in plan.choices if each.item.startswith("OPT-01b[muon")]
    assert muon
    assert {each.kind for each in muon} <= {"stack", "adapter"}


def test_an_untried_version_has_the_same_plan_without_claims() -> None:
    tried, untried = (profiles.plan(LAW, "OPT-01b", replace(ABILITIES, claims=each)) for each in (True, False))
    assert untried.claimed == ()
    assert (untried.items, untried.choices) == (tried.items, tried.choices)


class _DoesNotMeasure(Reference):
    offers = Reference.offers - {"step_memory"}
    abilities = Abilities(
        has=frozenset(FEATURES) - {"recurrent"},
        lacks=(Absence(features=frozenset({"recurrent"}), kind="stack", reason="it has no M2RNN"),),
    )


def test_a_case_that_the_stack_cannot_run_is_the_stacks_lack_and_not_the_adapters() -> None:
    contract = LAW.contracts["MEM-01i"]
    needs = {case: "recurrent" in contract.features(case) for case in contract.cases}
    lacking = {case: judge(contract, case, _DoesNotMeasure()).lack for case in needs}
    assert {True, False} == {*needs.values()}
    assert lacking == {case: "stack" if recurrent else "adapter" for case, recurrent in needs.items()}


class _Narrow(Reference):
    abilities = Abilities(
        has=frozenset(FEATURES),
        lacks=(Absence(features=frozenset({"float64", "muon"}), kind="stack", reason="it has no float64 then"),),
    )


@pytest.mark.parametrize(("case", "dtype"), [("dense", ""), ("muon", "float32")])
def test_a_case_is_put_in_float32_where_its_features_leave_no_float64(case: str, dtype: str) -> None:
    result = judge(LAW.contracts["OPT-04a"], case, _Narrow())
    assert (result.outcome, result.dtype) == ("holds", dtype)


def test_a_stack_in_another_process_sends_its_abilities() -> None:
    class Able(Reference):
        abilities = ABILITIES

    assert introduce(Able()).abilities == ABILITIES
    assert introduce(Reference()).abilities is None


def test_every_feature_that_a_case_needs_exists() -> None:
    for contract in LAW.contracts.values():
        for name in contract.asked if contract.needs else ():
            assert contract.features(name) <= FEATURES.keys(), f"{contract.id}[{name}]"
