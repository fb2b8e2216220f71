"""The real Megatron-Core, asked: what it refuses, and its parser against the shipped table. TOPO judges its groups."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.spec import Degrees, HybridPattern, NotOffered, Party, Refused, Unreachable
from contracts.stacks.launched import Launched
from contracts.stacks.megatron import VERSIONS, Megatron, installed
from contracts.stacks.megatron.flag_rules import table
from tests_unit.argv.test_flag_table import ONE_CONNECTION, RULES, argv_of, env_of

pytestmark = pytest.mark.megatron

OLD, *_, NEW = VERSIONS
MODEL = (
    "--num-layers 8 --hidden-size 128 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128"
    " --micro-batch-size 1 --train-iters 10 --lr 1e-4 --position-embedding-type rope --disable-bias-linear"
)


def megatron(version: str) -> Megatron:
    """The party, or a skip where nobody made its environment."""
    if version not in installed():
        pytest.skip(f"Megatron-Core {version} is not installed: make it with `make megatron`")
    return Megatron(version)


@pytest.fixture(params=(OLD, NEW))
def each(request: pytest.FixtureRequest) -> Megatron:
    return megatron(request.param)


@pytest.fixture
def newest() -> Megatron:
    return megatron(NEW)


def test_the_megatron_adapter_reports_its_version_and_how_it_answers(each: Megatron) -> None:
    assert isinstance(each, Party)
    assert each.name == "megatron"
    assert each.layouts == {"borrowed"}
    groups = {"topology", "group_calls", "gradient_reduction"}
    assert each.offers == (groups if each.version == OLD else groups | {"read_pattern", "read_argv"})
    assert each.labels.keys() == each.offers  # this interpreter has no Megatron-Core: nothing about numbers
    assert each.labels["topology"].startswith("unpatched")
    assert each.labels["gradient_reduction"].startswith("shimmed: torch.cuda.current_device")


def test_degrees_that_do_not_divide_the_world_are_refused_with_megatrons_message(each: Megatron) -> None:
    with pytest.raises(Refused, match=r"world_size \(8\) is not divisible by 3"):
        each.topology(Degrees(tp=3), 8, "borrowed")
    with pytest.raises(Refused, match=r"not divisible by expert_tensor_model_pipeline_parallel size \(8\)"):
        each.topology(Degrees(tp=2, ep=4), 4, "borrowed")
    with pytest.raises(Refused, match="world = 0: must be at least 1"):
        each.topology(Degrees(), 0, "borrowed")


def test_the_megatron_adapter_builds_only_the_borrowed_layout(each: Megatron) -> None:
    with pytest.raises(NotOffered, match="builds the borrowed layout, not own-axis"):
        each.topology(Degrees(), 8, "own-axis")
    with pytest.raises(NotOffered, match="own-axis"):
        each.group_calls(Degrees(), 8, "own-axis", 0)
    with pytest.raises(NotOffered, match="own-axis"):
        each.gradient_reduction(Degrees(), 8, "own-axis", 0, "dense")


def test_a_rank_outside_the_world_is_refused(each: Megatron) -> None:
    with pytest.raises(Refused, match="rank = 8: must lie in 0 … 7"):
        each.group_calls(Degrees(), 8, "borrowed", 8)
    with pytest.raises(Refused, match="rank = -1: must lie in 0 … 7"):
        each.gradient_reduction(Degrees(), 8, "borrowed", -1, "dense")


def test_an_answer_does_not_change_after_other_questions_and_refusals(each: Megatron) -> None:
    asked = (Degrees(tp=2, ep=2), 8, "borrowed")
    before = each.topology(*asked)
    with pytest.raises(Refused):
        each.topology(Degrees(tp=3), 8, "borrowed")
    each.gradient_reduction(*asked, 3, "expert")
    assert each.topology(*asked) == before


@pytest.mark.parametrize(
    ("text", "main", "mtp", "depth"),
    [
        ("*EME", "attention moe mamba moe", "", 0),
        ("D-M", "ds_attention mlp mamba", "", 0),
        ("M+-G", "mamba mla mlp gdn", "", 0),
        ("*E|ME/*-/*-", "attention moe mamba moe", "attention mlp", 2),
        ("MD-/*-", "mamba ds_attention mlp", "attention mlp", 1),
    ],
)
def test_megatrons_hybrid_parser_reads_each_block(newest: Megatron, text: str, main: str, mtp: str, depth: int) -> None:
    expected = HybridPattern(main=tuple(main.split()), mtp=tuple(mtp.split()), mtp_depth=depth)
    assert newest.read_pattern(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("AEM", "'A' is not a valid layer symbol"),
        ("*D", "Not supported to have both Attention and MLA/DSA"),
        ("M*/M-/M*", "All MTP patterns must be identical"),
        ("M*/M|-", r"In MTP pattern, '\|' is not a valid layer symbol"),
    ],
)
def test_an_illegal_hybrid_pattern_is_refused_with_megatrons_message(newest: Megatron, text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        newest.read_pattern(text)


def test_unusual_patterns_are_read_as_megatrons_parser_reads_them(newest: Megatron) -> None:
    assert newest.read_pattern("") == HybridPattern(main=())
    assert newest.read_pattern("M||*") == HybridPattern(main=("mamba", "attention"))
    assert newest.read_pattern("M*/") == HybridPattern(main=("mamba", "attention"))


@pytest.mark.parametrize("rule", RULES, ids=[rule["case"] for rule in RULES])
def test_each_recorded_argument_rule_holds_for_the_installed_megatron(newest: Megatron, rule: dict[str, Any]) -> None:
    reading = newest.read_argv(argv_of(rule), env_of(rule), rule["world"])
    assert (reading.stage, reading.version) == (rule["stage"].replace("ok", "accepted"), NEW)
    words = rule["result"].removeprefix("argparse: x: error: ").partition("Valid symbols are")[0]  # a set, in any order
    if reading.stage != "accepted":
        assert reading.message.strip().startswith(words.strip())
    else:
        final = {"dp": "data_parallel_size", "nl": "num_layers", "sp": "sequence_parallel"}
        for short, name in final.items():
            assert f"'{short}': {reading.values[name]}" in rule["result"]
        assert f"'nqg': {reading.values['config.num_query_groups']}" in rule["result"]


@pytest.mark.parametrize(
    ("extra", "flag", "why"),
    [
        ("--sequence-parallel", "--sequence-parallel", "asks for True, ends as False"),
        ("--num-query-groups 2", "--num-query-groups", "the model is configured with 8"),
        ("--hybrid-layer-pattern M*M*", "--num-layers", "asks for 8, ends as 4"),
        ("--hybrid-layer-pattern M*M*M*M*/M* --mtp-num-layers 3", "--mtp-num-layers", "asks for 3, ends as 1"),
        ("--num-layers=4", "--num-layers", "8 is given again later, and the last one wins"),
        ("--num-experts 0", "--num-experts", "asks for 0, ends as None"),
    ],
)
def test_a_flag_that_megatron_ignores_is_reported_as_dropped(newest: Megatron, extra: str, flag: str, why: str) -> None:
    reading = newest.read_argv((*MODEL.split(), "--no-rope-fusion", *extra.split()), ONE_CONNECTION, 8)
    assert reading.stage == "accepted"
    assert list(reading.dropped) == [flag]
    assert why in reading.dropped[flag]


@pytest.mark.parametrize(
    "extra",
    [
        "--no-rope-fusion --tensor-model-parallel-size 1 --seed 1234 --weight-decay 0.01",  # the defaults, stated
        "--no-rope-fusion --tensor-model-parallel-size 2 --sequence-parallel --group-query-attention"
        " --num-query-groups 2 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights",
        "--no-rope-fusion --hybrid-override-pattern M*M*M*M*",  # its value goes to the flag that replaced it
        "--no-rope-fusion --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "--no-rope-fusion --num-experts 8 --moe-grouped-gemm --moe-router-load-balancing-type aux_loss"
        " --moe-aux-loss-coeff 0.01 --moe-token-dispatcher-type alltoall --moe-router-dtype fp32",
        "--no-rope-fusion --log-interval 7 --eval-iters 0 --lr-decay-style cosine --min-lr 1e-5 --mock-data",
    ],
)
def test_a_flag_with_an_effect_or_a_default_value_is_not_reported_as_dropped(newest: Megatron, extra: str) -> None:
    reading = newest.read_argv((*MODEL.split(), *extra.split()), ONE_CONNECTION, 8)
    assert (reading.stage, reading.dropped) == ("accepted", {})


def test_a_missing_package_is_either_presumed_and_reported_or_makes_the_answer_unreachable(newest: Megatron) -> None:
    fused = (*MODEL.split(), "--num-experts", "8", "--moe-permute-fusion")
    reading = newest.read_argv(fused, ONE_CONNECTION, 8)
    assert (reading.stage, reading.provenance) == ("accepted", "shimmed")
    assert reading.message == "(Transformer Engine 2.14.0 presumed)"
    with pytest.raises(Unreachable, match=r"stopped at parse over its environment: .*multistorageclient"):
        newest.read_argv((*MODEL.split(), "--enable-msc"), ONE_CONNECTION, 8)


def test_megatrons_parser_sees_only_the_environment_of_the_launch(
    newest: Megatron, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    argv = (*MODEL.split(), "--no-rope-fusion", "--tensor-model-parallel-size", "2")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in newest.read_argv(argv, {}, 8).message
    assert newest.read_argv(argv, ONE_CONNECTION, 8).stage == "accepted"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in newest.read_argv(argv, {}, 8).message


def test_the_shipped_flag_table_equals_megatrons_parser_flag_by_flag(newest: Megatron) -> None:
    live = {tuple(flag["names"]): flag for flag in newest.flags()}
    shipped = {tuple(flag["names"]): flag for flag in table()["flags"]}
    assert live.keys() == shipped.keys()
    for names, flag in shipped.items():
        differing = {key: (flag[key], value) for key, value in live[names].items() if value != flag[key]}
        assert not differing, f"{names[0]}: shipped and live differ in {differing}"


def test_a_missing_environment_is_reported_with_the_command_that_makes_it() -> None:
    with pytest.raises(Unreachable, match=r"0\.1\.2 is not installed: make it with `make megatron MEGATRON=0\.1\.2`"):
        Megatron("0.1.2")
    with pytest.raises(Unreachable, match="make megatron"):
        Megatron(pythons={})


def test_an_environment_without_megatron_or_with_another_version_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"there is no megatron\.core here"):
        Megatron(NEW, pythons={NEW: sys.executable})
    megatron(NEW)
    with pytest.raises(Unreachable, match=f"has Megatron-Core {NEW}, not 0.20.0"):
        Megatron("0.20.0", pythons={"0.20.0": installed()[NEW]})


def test_environments_are_found_from_any_directory_below_and_the_nearest_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(directory: Path) -> Path:
        python = directory / ".venv-megatron-9.9.9/bin/python"
        python.parent.mkdir(parents=True)
        python.touch()
        return python

    far, near = make(tmp_path), make(tmp_path / "a")
    (tmp_path / "a/b").mkdir()
    monkeypatch.chdir(tmp_path / "a/b")
    assert installed()["9.9.9"] == near
    monkeypatch.chdir(tmp_path)
    assert installed()["9.9.9"] == far


def test_two_stacks_of_one_version_share_one_worker(each: Megatron) -> None:
    workers: Mapping[str, Launched] = {"one": each._worker, "other": Megatron(each.version)._worker}
    assert workers["one"] is workers["other"]
