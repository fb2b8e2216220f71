"""Megatron's flags as a table of facts: what it knows, what it says it does not know."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.spec import Party
from contracts.stacks.megatron.flag_rules import table
from contracts.stacks.megatron.flag_table import CANONICAL, FlagTable

RULES: list[dict[str, Any]] = table()["observed_rules_0.19.2"]
ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def argv_of(rule: dict[str, Any]) -> tuple[str, ...]:
    """The words of an observed case; the empty pattern was given as an empty word."""
    words = tuple(rule["argv"].split())
    return (*words, "") if rule["argv"].endswith("--hybrid-layer-pattern ") else words


def env_of(rule: dict[str, Any]) -> dict[str, str]:
    """The environment of an observed case: one CUDA connection unless it was taken away."""
    return {name: value for name, value in (ONE_CONNECTION | rule["env"]).items() if value}


def read(argv: str, *, version: str = CANONICAL, world: int = 8) -> Any:
    return FlagTable(version).read_argv(tuple(argv.split()), ONE_CONNECTION, world)


def test_the_flag_table_names_its_version_and_provenance() -> None:
    party = FlagTable()
    assert isinstance(party, Party)
    assert party.offers == {"read_argv"}
    label = "substituted: table of facts, megatron-core 0.19.2, sha1 5a404171460dd656ae319c3172ecfc9e8cd746a4"
    assert party.labels["read_argv"] == label
    reading = read("--hidden-size 128")
    assert (reading.stage, reading.version, reading.provenance) == ("accepted", "0.19.2", "substituted")
    assert "Megatron's validation did not run" in reading.message


def test_the_flag_table_has_every_flag_and_every_observed_rule() -> None:
    assert len(table()["flags"]) == 807
    assert len(table()["gone_from_canonical"]) == 107
    assert len(RULES) == 69
    assert table()["hybrid_symbols_by_version"]["0.16.x"] == "M * - E"


@pytest.mark.parametrize("rule", RULES, ids=[rule["case"] for rule in RULES])
def test_the_flag_table_refuses_each_argv_at_the_stage_at_which_megatron_did(rule: dict[str, Any]) -> None:
    reading = FlagTable().read_argv(argv_of(rule), env_of(rule), rule["world"])
    assert reading.stage == rule["stage"].replace("ok", "accepted"), reading.message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--multi-token-prediction", "unrecognized arguments: --multi-token-prediction"),
        ("--tensor-model-parallel 2", "unrecognized arguments: --tensor-model-parallel 2"),
        ("--rotary-base 10000.0", "argument --rotary-base: invalid int value: '10000.0'"),
        ("--normalization BatchNorm", "argument --normalization: invalid choice: 'BatchNorm'"),
        ("--hidden-size", "argument --hidden-size: expected one argument"),
        ("--swiglu yes", "unrecognized arguments: yes"),
        ("--rampup-batch-size 1 2", "argument --rampup-batch-size: expected 3 arguments"),
        ("--hybrid-attention-ratio 0.1", "--hybrid-attention-ratio existed from 0.8.0 to 0.16.1"),
        ("--help", "exits without reading further"),
    ],
)
def test_names_types_choices_and_arity_are_judged_as_by_the_real_parser(argv: str, words: str) -> None:
    reading = read(argv)
    assert reading.stage == "parse"
    assert words in reading.message


def test_each_megatron_version_has_its_own_flags() -> None:
    assert read("--hybrid-attention-ratio 0.1", version="0.16.1").stage == "accepted"
    reading = read("--hybrid-layer-pattern M*", version="0.16.1")
    assert (reading.stage, "--hybrid-layer-pattern exists since 0.17.0" in reading.message) == ("parse", True)


def test_every_flag_that_takes_a_default_takes_its_own() -> None:
    for fact in table()["flags"]:
        if fact["nargs"] is None and fact["type"] in ("int", "float", "str") and fact["default"] is not None:
            read_back = read(f"{fact['names'][0]}={fact['default']}").values[fact["dest"]]
            kind = {"int": int, "float": float, "str": str}[fact["type"]]
            assert kind(read_back) == fact["default"], fact["names"]


@pytest.mark.parametrize(
    ("argv", "flag", "why"),
    [
        ("--sequence-parallel", "--sequence-parallel", "tensor parallel size is 1"),
        ("--num-query-groups 2", "--num-query-groups", "not read without --group-query-attention"),
        ("--num-layers 8 --hybrid-layer-pattern M*", "--num-layers", "asks for 8, but the pattern has 2"),
        ("--seed 1 --seed=2", "--seed", "the last one wins"),
        ("--use-mcore-models", "--use-mcore-models", "accepted no-op"),
    ],
)
def test_a_flag_that_megatron_does_not_follow_is_reported(argv: str, flag: str, why: str) -> None:
    assert why in read(argv).dropped[flag]


def test_a_flag_that_megatron_follows_is_not_reported() -> None:
    argv = "--tensor-model-parallel-size 2 --sequence-parallel --group-query-attention --num-query-groups 2 --seed 1"
    assert read(argv).dropped == {}


def test_the_table_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-S", "-c", "from contracts.stacks.megatron.flag_table import FlagTable; FlagTable()"]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
