"""Budgets: what is counted by hand, what is refused, the presets as they stand, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from contracts.bringup.commands.capacity import told
from contracts.spec import Batch, Degrees, Mamba, Moe, Mtp, Recipe, Refused, cards, memory, parameters, presets
from contracts.spec.capacity import Budget, Card, Part, Spread
from tests_unit._parties.running import side_by_side

ROOMY = Card(name="roomy", usable_bytes=10**15)

# Two KV groups of 4, 4 heads; inner width of M 3 · 4 = 12.
TINY = Recipe(
    name="tiny", family="test", pattern="AEMR", depth=5, hidden=16, ffn_hidden=24, heads=4, kv_groups=2, seq_length=8,
    vocab=50, moe=Moe(experts=12, top_k=3, expert_hidden=6, shared_hidden=10),
    mamba=Mamba(heads=3, head_dim=4, state=5, groups=1), batch=Batch(micro=1, total=24),
)  # fmt: skip


@pytest.mark.parametrize(("depths", "layers"), [(0, 5), (1, 7), (2, 9)])
def test_each_depth_of_prediction_keeps_the_activations_of_two_blocks(depths: int, layers: int) -> None:
    recipe = replace(TINY, mtp=Mtp(depth=depths) if depths else None)
    (stage,) = memory.budget(recipe, Spread(degrees=Degrees(), world=1, layout="borrowed"), ROOMY).stages
    (blocks,) = (line.bytes for line in stage.lines if line.part == "activations" and line.what == "blocks")
    assert blocks == layers * 8 * 16 * 34  # tokens · hidden · bytes an element of a bf16 block


def test_eager_layers_are_counted_by_hand() -> None:
    """8 tokens of bf16. Norm of D 16: its input and its result in float32, and the layer's input: 10 · 16 = 160."""
    spread = Spread(degrees=Degrees(), world=1, layout="borrowed", kernels="eager")
    recipe = replace(TINY, pattern="AEM", depth=3)
    (stage,) = memory.budget(recipe, spread, ROOMY).stages
    assert {line.what[0]: line.bytes for line in stage.lines if " blocks: " in line.what} == {
        # QK norms 8 · (16 + 8), rope 8 · 4, q k v 12 · 16, softmax 4 · 4 · 8, mask 8, wo's input 2 · 16
        "A": 8 * (160 + 192 + 32 + 192 + 128 + 8 + 32),
        # router's input 4 · 16, experts 2 · 2 · 3 · 6, shared 2 · 2 · 10
        "E": 8 * (160 + 64 + 72 + 40),
        # I 12, B and C of one group 5 each, of three heads 15: 6 · 22, 16 · 12, 10 · 12, 20 · 15, 12 · 64 · 3, 12 · 12,
        # 4 · 12 · 5 / 64
        "M": 8 * (160 + 132 + 192 + 120 + 300 + 2304 + 144 + 3),
    }
    assert _part(memory.budget(recipe, spread, ROOMY), 0, "routing") == 8 * (12 * 4 + 3 * 16 * 6)


def test_eager_layers_without_a_known_count_are_refused_at_once() -> None:
    recipe = replace(TINY, mtp=Mtp(depth=1))
    with pytest.raises(Refused) as caught:
        memory.budget(recipe, Spread(degrees=Degrees(tp=2), world=2, layout="borrowed", kernels="eager"), ROOMY)
    for words in ("is not counted for mtp", "is not counted for R, and the pattern is AEMR", "no axis cuts"):
        assert words in str(caught.value)


def test_recomputed_eager_layers_are_budgeted_one_at_a_time() -> None:
    spread = Spread(degrees=Degrees(), world=1, layout="borrowed", kernels="eager")
    (stage,) = memory.budget(replace(TINY, pattern="AEM", depth=3, recompute="full"), spread, ROOMY).stages
    assert [line.what[0] for line in stage.lines if " blocks: " in line.what] == ["M"]


def test_sharding_over_one_rank_needs_no_communication_buffer() -> None:
    spread = Spread(degrees=Degrees(), world=1, layout="borrowed", sharding="full")
    (stage,) = memory.budget(TINY, spread, ROOMY).stages
    assert [line.bytes for line in stage.lines if line.part == "communication"] == [0]


def test_replicated_heads_are_budgeted_on_every_rank_that_holds_them() -> None:
    keys = next(tensor for tensor in parameters.block(TINY, "A") if tensor.name == "key and value")
    assert [keys.on_a_rank(tp, 1, 1) for tp in (1, 2, 4)] == [256, 128, 128]


def test_the_sources_example_of_an_experts_capacity_is_reproduced() -> None:
    assert memory.capacity_of_an_expert(4096, 6, 64) == 480
    assert memory.capacity_of_an_expert(16384, 4, 16) == 5120
    assert memory.capacity_of_an_expert(1, 1, 64) == 1


def _part(budget: Budget, stage: int, part: Part) -> int:
    return sum(line.bytes for line in budget.stages[stage].lines if line.part == part)


def test_virtual_pipeline_stages_hold_more_microbatches_of_fewer_layers() -> None:
    """Interleaved 1F1B over 2 ranks of 2 chunks: rank 0 warms up with 4 chunk passes, rank 1 with 2, and one runs."""
    plain = replace(TINY, pattern="A" * 8, depth=8, moe=None, batch=Batch(micro=1, total=8))
    virtual = replace(plain, pattern="AA|AA|AA|AA")
    spread = Spread(degrees=Degrees(pp=2), world=2, layout="borrowed")
    blocks = [
        next(line.bytes for line in stage.lines if line.what == "blocks")
        for recipe in (plain, virtual)
        for stage in memory.budget(recipe, spread, ROOMY).stages
    ]
    chunk = blocks[1] // 2  # the last stage of the plain schedule keeps one pass of four layers; a chunk has two
    assert blocks == [4 * chunk, 2 * chunk, 5 * chunk, 3 * chunk]


def test_a_tied_embedding_is_budgeted_on_the_first_and_the_last_stage() -> None:
    tied = replace(TINY, pattern="AAAA", depth=4, moe=None, untied_embeddings=False)
    spread = Spread(degrees=Degrees(pp=2), world=2, layout="borrowed")
    first, last = memory.budget(tied, spread, ROOMY).stages
    assert last.parameters["tp"] == first.parameters["tp"]
    assert parameters.count(tied).families["head"] == 0


def test_everything_that_does_not_divide_is_refused_at_once() -> None:
    with pytest.raises(Refused) as caught:
        memory.budget(TINY, Spread(degrees=Degrees(ep=5, pp=3), world=15, layout="own-axis"), ROOMY)
    assert set(caught.value.fields) == {"ep", "pp"}
    with pytest.raises(Refused, match="usable_bytes = 0: must be positive"):
        memory.budget(TINY, Spread(degrees=Degrees(), world=1, layout="own-axis"), Card(name="no", usable_bytes=0))


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 5)])
def test_a_fit_of_zero_or_negative_bytes_is_refused(sizes: tuple[int, int]) -> None:
    needed, usable = sizes
    with pytest.raises(Refused, match="must be positive"):
        cards.fit(needed, Card(name="card", usable_bytes=usable), None)


PRESETS = {
    "nam52": "nam52_h200_dense_ref_v1",
    "nam52r": "nam52r_h200_4full_9sparse_candidate_v1",
    "nam56r": "nam56r_h200_bf16_v1",
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_budget_of_a_preset_is_as_before(name: str, snapshot: SnapshotAssertion) -> None:
    """Micro batches of 4, as the preset has it, and of 1, over one node of eight."""
    preset = presets.resolve(PRESETS[name])
    text = [f"{preset.name}: {parameters.count(preset).total:_} parameters"]
    for micro in (4, 1):
        recipe = replace(preset, batch=replace(preset.batch, micro=micro))
        spread = Spread(degrees=recipe.degrees, world=8, layout="own-axis")
        text += ["", *told(recipe, spread, memory.budget(recipe, spread, cards.card("h200")))]
    assert "\n".join(text) == snapshot


COMMANDS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "too-large": (("budget", PRESETS["nam56r"]), 1, "verdict: too large"),
    "fits": (("budget", PRESETS["nam56r"], "--micro", "1"), 0, "verdict: fits"),
    "small-card": (("budget", "tiny-nam56r", "--card", "1"), 1, "of 1.07 GB"),
    "pipeline": (
        ("budget", PRESETS["nam56r"], "--degrees", "pp=2,tp=2,sp=1,ep=2", "--layout", "borrowed", "--micro", "1"),
        0,
        "stage 1: 26 layers",
    ),
    "degree-unknown": (("budget", PRESETS["nam56r"], "--degrees", "dp=2"), 2, "'dp=2': is not a degree"),
    "card-unknown": (("budget", PRESETS["nam56r"], "--card", "b300"), 2, "'b300': is not a card"),
    "world-too-small": (("budget", PRESETS["nam56r"], "--world", "2"), 2, "must be a multiple of pp * ep * tp (4)"),
    "micro-does-not-divide": (("budget", PRESETS["nam56r"], "--micro", "3"), 2, "must divide batch.total (64)"),
    "json": (("budget", PRESETS["nam56r"], "--json"), 1, '"word": "too large"'),
}


def test_the_budget_command_answers_by_exit_code_and_in_json(tmp_path: Path) -> None:
    ended = side_by_side({name: words for name, (words, _, _) in COMMANDS.items()}, tmp_path)
    for name, (_, code, words) in COMMANDS.items():
        assert ended[name].returncode == code, f"{name}: {ended[name]}"
        assert words in ended[name].stdout + ended[name].stderr, f"{name}: {ended[name]}"
    assert json.loads(ended["json"].stdout)["fit"]["proved"] is False
