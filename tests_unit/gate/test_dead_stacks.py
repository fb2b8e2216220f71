"""The table of what holds for a stack in which nothing happens names contracts about training, each with a reason."""

import pytest

pytest.importorskip("torch")
from benchmarks import power
from tests_unit._parties.law import LAW


def test_the_table_of_explained_passes_lists_only_contracts_that_ask_train() -> None:
    named = {id for argued in power.table().values() for id in argued}
    assert not {id for id in named if "train" not in LAW.contracts[id].asks}


def test_a_contract_that_a_dead_stack_passes_is_reported_unless_explained() -> None:
    outcomes = {
        ("OPT-04a", ""): "holds",
        ("OPT-05b", ""): "holds",
        ("PAR-13", ""): "violated",
        ("PAR-05a", ""): "broken",
    }
    argued = {id: power.Argued(because="told") for id in ("OPT-05b", "PAR-13")}
    found = power.findings("StandsStill", outcomes, argued)
    assert found[0].startswith("OPT-04a holds for StandsStill: ")
    assert found[1:] == ["PAR-13 is argued, and catches StandsStill", "PAR-05a is broken for StandsStill"]


def test_an_explanation_needs_another_contract_that_catches_the_stack_on_each_axis() -> None:
    argued = {"PAR-03e": power.Argued(because="told", witness="PAR-16")}
    outcomes = {("PAR-03e", "dp2"): "holds", **dict.fromkeys(power.fitting("PAR-16", 2), "violated")}
    assert power.unwitnessed("EveryRankDoesAll", outcomes, argued, 2) == []
    outcomes |= {each: "holds" for each in power.fitting("PAR-16", 2) if "fsdp" in each[1]}
    (found,) = power.unwitnessed("EveryRankDoesAll", outcomes, argued, 2)
    assert found == "PAR-03e is argued with PAR-16, which does not catch EveryRankDoesAll on fsdp"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stack_that_never_updates_weights_is_caught_by_every_unexplained_contract() -> None:
    outcomes = power.alone("StandsStill", power.about_training(1, ("OPT-", "CKPT-01b", "PREC-05c")))
    assert power.findings("StandsStill", outcomes, power.table()["StandsStill"]) == []
