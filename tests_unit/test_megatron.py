"""The real Megatron-Core, asked: its groups against a brute-force enumeration, its parser against the shipped table."""

import random
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.spec import presets
from contracts.spec.errors import NotOffered, Refused, Unreachable
from contracts.spec.launch import Lane
from contracts.spec.pattern import HybridPattern
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.stack import Party
from contracts.spec.topology import Degrees, Group
from contracts.stacks.launched import Launched
from contracts.stacks.megatron import VERSIONS, Megatron, installed
from contracts.stacks.megatron.flag_rules import table
from contracts.stacks.reference.stack import Reference
from tests_unit.argv.test_flag_table import ONE_CONNECTION, RULES, argv_of, env_of

pytestmark = pytest.mark.megatron

OLD, *_, NEW = VERSIONS
MODEL = (
    "--num-layers 8 --hidden-size 128 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128"
    " --micro-batch-size 1 --train-iters 10 --lr 1e-4 --position-embedding-type rope --disable-bias-linear"
)
WORLDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 96, 128, 160, 192, 256, 384, 512)
DRAWS = 60  # the gate draws 300 (TOPO-05c); here the adapter alone is looked at


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


def enumerated(degrees: Degrees, world: int) -> dict[str, tuple[Group, ...]] | None:
    """Every group, from the coordinates of every rank; None where the degrees do not tile the world.

    Ranks are dealt with TP fastest, then CP, then DP, then PP; for experts ETP, EP, EDP, PP.
    """
    tp, cp, pp, ep = degrees.tp, degrees.cp, degrees.pp, degrees.ep
    etp = degrees.etp or tp
    if world % (tp * cp * pp) or world % (etp * ep * pp):
        return None
    dp, edp = world // (tp * cp * pp), world // (etp * ep * pp)
    found: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in range(world):
        t, c, d, p = rank % tp, rank // tp % cp, rank // (tp * cp) % dp, rank // (tp * cp * dp)
        found["pp"][t, c, d].append(rank)
        found["dp"][t, c, p].append(rank)
        found["cp"][t, d, p].append(rank)
        found["tp"][c, d, p].append(rank)
        found["dp_cp"][t, p].append(rank)
        t, e, d = rank % etp, rank // etp % ep, rank // (etp * ep) % edp
        found["ep"][t, d, p].append(rank)
        found["edp"][t, e, p].append(rank)
        found["etp"][e, d, p].append(rank)
    return {axis: tuple(tuple(members) for members in groups.values()) for axis, groups in found.items()}


def drawn(seed: int) -> list[tuple[Degrees, int]]:
    """Degrees and worlds, half of them legal or so; every kind of indivisibility among the others."""
    rng = random.Random(seed)
    cases = []
    for _ in range(DRAWS):
        tp, pp, cp = rng.choice((1, 1, 2, 2, 3, 4, 8)), rng.choice((1, 1, 2, 3, 4)), rng.choice((1, 1, 1, 2, 4))
        ep, etp = rng.choice((1, 1, 2, 3, 4, 8, 16)), rng.choice((0, 0, 0, 1, 2, 4))
        cases.append((Degrees(tp=tp, pp=pp, cp=cp, ep=ep, etp=etp), rng.choice(WORLDS)))
    return cases


def test_the_party_says_who_it_is_and_how_it_answers(each: Megatron) -> None:
    assert isinstance(each, Party)
    assert each.name == "megatron"
    assert each.layouts == {"borrowed"}
    groups = {"topology", "group_calls", "gradient_reduction"}
    assert each.offers == (groups if each.version == OLD else groups | {"read_pattern", "read_argv"})
    assert each.labels.keys() == each.offers  # this interpreter has no Megatron-Core: nothing about numbers
    assert each.labels["topology"].startswith("unpatched")
    assert each.labels["gradient_reduction"].startswith("shimmed: torch.cuda.current_device")


@pytest.mark.parametrize(("version", "seed"), [(OLD, 16), (NEW, 19)])
def test_drawn_topologies_are_those_of_a_brute_force_enumeration(version: str, seed: int) -> None:
    party = megatron(version)
    legal, different = 0, []
    for degrees, world in drawn(seed):
        expected = enumerated(degrees, world)
        legal += expected is not None
        try:
            answer = party.topology(degrees, world, "borrowed")
        except Refused as refused:
            if expected is not None:
                different.append(f"{degrees} over {world} was refused: {refused}")
            continue
        if expected is None:
            different.append(f"{degrees} over {world} was accepted")
        elif answer.groups != expected or answer.dp != len(expected["dp"][0]):
            different.append(f"{degrees} over {world}: {answer.groups} instead of {expected}")
        else:
            assert answer.sizes == {axis: len(members[0]) for axis, members in expected.items()}
            assert answer.expert_dp == len(expected["edp"][0])
    assert not different, f"{len(different)} of {DRAWS}: {different[0]}"
    assert DRAWS // 5 <= legal <= DRAWS - DRAWS // 5, f"only {legal} draws are legal, or too many: draw better ones"


def test_groups_of_a_world_too_large_for_every_rank_are_still_megatrons(newest: Megatron) -> None:
    degrees = Degrees(tp=8, pp=4, ep=8, etp=1)
    assert newest.topology(degrees, 4096, "borrowed").groups == enumerated(degrees, 4096)


def test_a_world_that_the_degrees_do_not_divide_is_refused_in_megatrons_words(each: Megatron) -> None:
    with pytest.raises(Refused, match=r"world_size \(8\) is not divisible by 3"):
        each.topology(Degrees(tp=3), 8, "borrowed")
    with pytest.raises(Refused, match=r"not divisible by expert_tensor_model_pipeline_parallel size \(8\)"):
        each.topology(Degrees(tp=2, ep=4), 4, "borrowed")
    with pytest.raises(Refused, match="world = 0: must be at least 1"):
        each.topology(Degrees(), 0, "borrowed")


def test_no_other_layout_is_built(each: Megatron) -> None:
    with pytest.raises(NotOffered, match="builds the borrowed layout, not own-axis"):
        each.topology(Degrees(), 8, "own-axis")
    with pytest.raises(NotOffered, match="own-axis"):
        each.group_calls(Degrees(), 8, "own-axis", 0)
    with pytest.raises(NotOffered, match="own-axis"):
        each.gradient_reduction(Degrees(), 8, "own-axis", 0, "dense")


def test_every_rank_makes_the_same_groups_in_the_same_order(each: Megatron) -> None:
    degrees = Degrees(tp=2, pp=2, cp=2, ep=4, etp=1)
    first, *others = (each.group_calls(degrees, 16, "borrowed", rank) for rank in range(16))
    assert all(other == first for other in others)
    expected = enumerated(degrees, 16)
    assert expected is not None
    for axis, groups in expected.items():
        assert tuple(call.members for call in first if axis in call.axes) == groups


def test_a_rank_outside_the_world_is_refused(each: Megatron) -> None:
    with pytest.raises(Refused, match="rank = 8: must lie in 0 … 7"):
        each.group_calls(Degrees(), 8, "borrowed", 8)
    with pytest.raises(Refused, match="rank = -1: must lie in 0 … 7"):
        each.gradient_reduction(Degrees(), 8, "borrowed", -1, "dense")


@pytest.mark.parametrize(
    ("degrees", "world"),
    [
        (Degrees(), 1),
        (Degrees(tp=2, pp=2, ep=4), 16),
        (Degrees(tp=2, cp=2, ep=4, etp=1), 24),
        (Degrees(pp=3, ep=3), 18),
        (Degrees(tp=1, etp=4, ep=2), 16),
    ],
    ids=str,
)
def test_a_gradient_is_summed_over_its_replicas_and_divided_by_all_that_read_data(
    each: Megatron, degrees: Degrees, world: int
) -> None:
    expected = enumerated(degrees, world)
    assert expected is not None
    for kind, axis in (("dense", "dp_cp"), ("expert", "edp")):
        for rank in range(0, world, 5):
            answer = each.gradient_reduction(degrees, world, "borrowed", rank, kind)
            assert answer.ranks == next(group for group in expected[axis] if rank in group)
            assert answer.divisor == len(expected["dp_cp"][0]), f"{kind} gradient of rank {rank}"


def test_one_question_leaves_nothing_behind_for_the_next(each: Megatron) -> None:
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
def test_the_hybrid_parser_names_its_blocks(newest: Megatron, text: str, main: str, mtp: str, depth: int) -> None:
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
def test_an_illegal_hybrid_pattern_is_refused_in_megatrons_words(newest: Megatron, text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        newest.read_pattern(text)


def test_what_the_hybrid_parser_lets_pass_is_read_as_it_reads_it(newest: Megatron) -> None:
    assert newest.read_pattern("") == HybridPattern(main=())
    assert newest.read_pattern("M||*") == HybridPattern(main=("mamba", "attention"))
    assert newest.read_pattern("M*/") == HybridPattern(main=("mamba", "attention"))


@pytest.mark.parametrize("rule", RULES, ids=[rule["case"] for rule in RULES])
def test_an_observed_rule_is_observed_again(newest: Megatron, rule: dict[str, Any]) -> None:
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
def test_a_flag_that_changes_nothing_is_found_by_leaving_it_out(
    newest: Megatron, extra: str, flag: str, why: str
) -> None:
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
def test_a_flag_that_does_something_or_states_a_default_is_not_dropped(newest: Megatron, extra: str) -> None:
    reading = newest.read_argv((*MODEL.split(), *extra.split()), ONE_CONNECTION, 8)
    assert (reading.stage, reading.dropped) == ("accepted", {})


def test_a_missing_package_is_presumed_and_said_or_makes_the_answer_unreachable(newest: Megatron) -> None:
    fused = (*MODEL.split(), "--num-experts", "8", "--moe-permute-fusion")
    reading = newest.read_argv(fused, ONE_CONNECTION, 8)
    assert (reading.stage, reading.provenance) == ("accepted", "shimmed")
    assert reading.message == "(Transformer Engine 2.14.0 presumed)"
    with pytest.raises(Unreachable, match=r"stopped at parse over its environment: .*multistorageclient"):
        newest.read_argv((*MODEL.split(), "--enable-msc"), ONE_CONNECTION, 8)


def test_only_the_environment_of_the_launch_is_seen(newest: Megatron, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    argv = (*MODEL.split(), "--no-rope-fusion", "--tensor-model-parallel-size", "2")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in newest.read_argv(argv, {}, 8).message
    assert newest.read_argv(argv, ONE_CONNECTION, 8).stage == "accepted"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in newest.read_argv(argv, {}, 8).message


def test_the_shipped_table_is_the_live_parser_flag_by_flag(newest: Megatron) -> None:
    live = {tuple(flag["names"]): flag for flag in newest.flags()}
    shipped = {tuple(flag["names"]): flag for flag in table()["flags"]}
    assert live.keys() == shipped.keys()
    for names, flag in shipped.items():
        differing = {key: (flag[key], value) for key, value in live[names].items() if value != flag[key]}
        assert not differing, f"{names[0]}: shipped and live differ in {differing}"


def test_an_environment_that_is_not_there_is_said_with_the_command_that_makes_it() -> None:
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


def test_two_parties_of_one_version_share_one_worker(each: Megatron) -> None:
    workers: Mapping[str, Launched] = {"one": each._worker, "other": Megatron(each.version)._worker}
    assert workers["one"] is workers["other"]


EMITTED = [
    pytest.param(recipe, mode, id=f"{name}-{mode}") for name, recipe in presets.PRESETS.items() for mode in recipe.modes
]


@pytest.mark.parametrize(("recipe", "mode"), EMITTED)
def test_every_argv_that_the_reference_emits_is_accepted_and_all_of_it_takes_effect(
    newest: Megatron, recipe: Recipe, mode: Mode
) -> None:
    launch = Reference().launch(recipe, Lane(mode=mode))
    reading = newest.read_argv(launch.argv, dict(launch.env), launch.world)
    assert (reading.stage, dict(reading.dropped)) == ("accepted", {}), reading.message
