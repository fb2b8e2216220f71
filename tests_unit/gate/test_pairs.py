"""Which features the contracts ask for together."""

import json

import pytest

from contracts.court import pairs
from contracts.spec import FEATURES, Recipe
from tests_unit._parties.law import LAW
from tests_unit._parties.running import invoked


def test_a_pair_of_features_is_covered_only_by_one_case_with_both() -> None:
    found = pairs.pairs([frozenset({"tp", "cp"}), frozenset({"cp", "ep"})], ("tp", "cp", "ep", "pp"))
    assert [sorted(each) for each in found.missing] == [["ep", "tp"]]  # nobody asks for pp: it is left out
    assert (found.covered, len(found.possible)) == (2, 3)
    three = pairs.pairs([frozenset({"tp", "cp", "ep"}), frozenset({"pp"})], ("tp", "cp", "ep", "pp"), 3)
    assert (three.covered, len(three.possible)) == (1, 4)


def test_a_pair_that_no_recipe_can_have_is_not_missing() -> None:
    found = pairs.pairs([frozenset({"mla"}), frozenset({"gqa"}), frozenset({"qk-norm"})])
    assert frozenset({"mla", "gqa"}) not in found.possible
    assert frozenset({"mla", "qk-norm"}) in found.missing
    unknown = {name for groups in pairs.APART.values() for names in groups for name in names} - FEATURES.keys()
    assert unknown == set()


def test_no_case_has_a_pair_that_is_declared_impossible() -> None:
    pytest.importorskip("torch")
    asked = {  # REC-07 also asks about the recipe with one field changed; what it needs is of that one
        each.features(case) - (each.needs[case.partition("@")[0]] if each.id.startswith("REC-07") else set())
        for each in LAW.contracts.values()
        for case, arguments in each.asked.items()
        if sum(isinstance(one, Recipe) for one in arguments) == 1
    }
    for reason, groups in pairs.APART.items():
        for names in groups:
            assert [sorted(each & set(names)) for each in asked if len(each & set(names)) > 1] == [], reason


def test_missing_pairs_are_listed_in_the_order_of_the_features() -> None:
    two = pairs.pairs([frozenset({each}) for each in ("mamba", "attention", "experts", "tp")])
    assert [*pairs._grouped(two)] == ["  attention: experts, mamba, tp", "  experts: mamba, tp", "  mamba: tp"]
    three = pairs.pairs([frozenset({each}) for each in ("mamba", "attention", "experts", "tp")], size=3)
    assert [*pairs._grouped(three)] == [
        "  attention with experts: mamba, tp", "  attention with mamba: tp", "  experts with mamba: tp",
    ]  # fmt: skip
    assert three.as_json() == {
        "size": 3, "possible": 4, "covered": 0,
        "missing": [["attention", "experts", "mamba"], ["attention", "experts", "tp"], ["attention", "mamba", "tp"],
                    ["experts", "mamba", "tp"]],
    }  # fmt: skip


def test_three_features_are_covered_only_by_one_case_with_all_three() -> None:
    found = pairs.pairs([frozenset({"tp", "cp"}), frozenset({"mla"}), frozenset({"gqa", "tp", "cp"})], size=3)
    assert [sorted(each) for each in found.possible] == [["cp", "gqa", "tp"], ["cp", "mla", "tp"]]
    assert [sorted(each) for each in found.missing] == [["cp", "mla", "tp"]]
    assert (found.covered, found.as_json()["covered"]) == (1, 1)


def test_the_table_of_pairs_is_empty_without_contracts() -> None:
    none = ["pairs of features: 0 of 0 are asked for together",
            "three axes of parallelism: 0 of 0 are asked for together"]  # fmt: skip
    assert pairs.table([], whole=False).split("\n") == none
    assert pairs.table([]).split("\n") == [
        *none, "", "no case asks for these two together:", "", "no case asks for these three together:",
    ]  # fmt: skip


def test_the_pairs_command_counts_and_lists_missing_pairs() -> None:
    pytest.importorskip("torch")
    told = invoked("coverage", "--pairs", code=0)
    assert "pairs of features: " in told.output
    assert "no case asks for these three together:" in told.output
    two, three = json.loads(invoked("coverage", "--pairs", "--json").output)
    assert (two["size"], three["size"]) == (2, 3)
    assert told.output.startswith(
        f"pairs of features: {two['covered']} of {two['possible']} are asked for together\n"
        f"three axes of parallelism: {three['covered']} of {three['possible']} are asked for together\n"
    )
    assert two["possible"] == two["covered"] + len(two["missing"]) > 1000
    invoked("coverage", "--pairs", "--stack", "reference", code=2)
