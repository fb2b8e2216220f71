"""The reference's experts against their oracle over drawn shapes, and what no question of the law can show."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.instruments import fixtures, numerics
from contracts.instruments.oracles import experts as oracle
from contracts.law._support import expert_calls
from contracts.law._support.recipes import E_LAYER
from contracts.spec import EXACT, FLOAT64, Moe, Recipe
from contracts.stacks.reference.model.blocks import MoE
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.stack import Reference


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    experts = draw(st.integers(2, 17))
    score = draw(st.sampled_from(["softmax", "sigmoid"]))
    moe = Moe(
        experts=experts,
        top_k=draw(st.integers(1, min(experts, 5))),
        expert_hidden=draw(st.integers(1, 9)),
        shared_hidden=draw(st.sampled_from([0, 7])),
        score=score,
        selection_bias=score == "sigmoid" and draw(st.booleans()),
        route_scale=draw(st.sampled_from([1.0, 2.5])),
        z_loss=1e-3,
        capacity_factor=draw(st.sampled_from([None, 0.3, 1.0, 4.0])),
    )
    return expert_calls.with_moe(moe, draw(st.sampled_from(["relu2", "swiglu"])))


@settings(max_examples=25)
@given(recipe=recipes(), batch=st.integers(1, 3), length=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_block_equals_its_oracle_over_drawn_shapes(recipe: Recipe, batch: int, length: int, seed: int) -> None:
    call = expert_calls.drawn_call(recipe, batch, length, seed=seed)
    run, want = Reference().run_block(call), expert_calls.oracle_answer(call)
    assert numerics.difference("y", run.y, want.routed.y_BTD, FLOAT64) == ""
    assert numerics.differences("gradient of", run.gradients, want.gradients, FLOAT64) == ""
    order = numerics.tensor(run.seen["experts"]).argsort(-1)
    for name, expected in (
        ("experts", want.routed.experts_BTK),
        ("gates", want.routed.gates_BTK),
        ("dropped", want.routed.dropped_BTK),
    ):
        assert numerics.difference(name, numerics.tensor(run.seen[name]).gather(-1, order), expected, FLOAT64) == ""
    assert numerics.difference("counts", run.seen["counts"], want.routed.counts_E, EXACT) == ""


def test_the_backend_is_chosen_by_dtype_and_widths() -> None:
    aligned = _block(replace(expert_calls.with_moe(replace(expert_calls.SOFTMAX, expert_hidden=16)), hidden=24))
    odd = _block(expert_calls.with_moe(replace(expert_calls.SOFTMAX, expert_hidden=20)))
    assert aligned.backend(torch.zeros(1, dtype=torch.bfloat16)) == "grouped"
    assert aligned.backend(torch.zeros(1, dtype=torch.float64)) == "loop"
    assert odd.backend(torch.zeros(1, dtype=torch.bfloat16)) == "loop"


def test_the_grouped_kernel_and_the_loop_agree() -> None:
    experts = _block(expert_calls.with_moe(replace(expert_calls.SOFTMAX, expert_hidden=16))).experts
    weight_EOI = fixtures.normal("w", (12, 16, 24)).float().bfloat16()
    x_SI = fixtures.normal("x", (9, 24)).bfloat16()
    ends_E = torch.tensor([0, 2, 2, 3, 3, 3, 7, 7, 7, 7, 9, 9])
    grouped_SO = experts.matmul(x_SI, weight_EOI, ends_E)
    loop_SO = experts.matmul(x_SI.double(), weight_EOI.double(), ends_E)
    assert torch.allclose(grouped_SO.double(), loop_SO, rtol=2**-7, atol=2**-7)


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """torch fills what it would leave uninitialised with NaN: `torch.utils.deterministic`."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert bool(torch.empty(3).isnan().all())
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("factor", [None, 0.3, 1.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_uninitialised_rows_reach_no_output_of_experts(factor: float | None, dtype: str) -> None:
    moe = replace(expert_calls.SOFTMAX, expert_hidden=24, shared_hidden=0, capacity_factor=factor)
    call = expert_calls.drawn_call(expert_calls.with_moe(moe), 2, 7, "bfloat16" if dtype == "bfloat16" else "float32")
    plain = Reference().run_block(call)
    with nan_in_new_memory():
        fouled = Reference().run_block(call)
    assert numerics.difference("y", fouled.y, plain.y, EXACT) == ""
    assert numerics.differences("gradient of", fouled.gradients, plain.gradients, EXACT) == ""


def test_a_selection_bias_is_a_saved_buffer_and_no_parameter() -> None:
    block = _block(expert_calls.with_moe(expert_calls.SIGMOID))
    assert "router.bias" in block.state_dict()
    assert "router.bias" not in dict(block.named_parameters())


def test_the_selection_bias_is_updated_in_place() -> None:
    bias_E = torch.zeros(4)
    held = bias_E
    MoE.update_bias(bias_E, torch.tensor([2**40 + 1, 2**40, 2**40 - 1, 2**40]), 0.5)
    assert held.tolist() == [-0.5, 0.0, 0.5, 0.0]  # counts beyond float32's integers


def test_the_expert_oracle_equals_values_worked_out_by_hand() -> None:
    """Two tokens, two experts of one unit each, k = 1 of sigmoids: gate · w2 · relu(w1 · x)²."""
    moe = Moe(experts=2, top_k=1, expert_hidden=1, shared_hidden=0, score="sigmoid", capacity_factor=1.0)
    recipe = replace(expert_calls.with_moe(moe), hidden=4, heads=4, kv_groups=2, norm_eps=1e-30)
    weights = {
        "norm.weight": torch.ones(4, dtype=torch.float64),
        "mixer.router.weight": torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64).log1p(),
        "mixer.experts.w1": torch.tensor([[[1.0, 2, 0, 0]], [[0.0, 0, 0, 0]]], dtype=torch.float64),
        "mixer.experts.w2": torch.tensor([[[1.0], [0], [0], [3]], [[9.0], [9], [9], [9]]], dtype=torch.float64),
    }
    x_BTD = torch.tensor([[[2.0, 0, 0, 0], [0, 2, 0, 0], [2, 0, 0, 0]]], dtype=torch.float64)
    routed = oracle.block(recipe, weights, x_BTD)
    # Sigmoid of 2 ln 2 is 4/5. All three want expert 0, which has ceil(3 / 2) = 2 slots.
    hand = torch.tensor([[[3.2, 0, 0, 9.6], [12.8, 0, 0, 38.4], [0, 0, 0, 0]]], dtype=torch.float64)
    assert numerics.difference("y", routed.y_BTD, hand, FLOAT64) == ""
    assert routed.dropped_BTK.flatten().tolist() == [False, False, True]


def _block(recipe: Recipe) -> MoE:
    """The reference's block with drawn float64 weights."""
    block = PARTS.mixer(recipe, E_LAYER, "nemo_native").double()
    assert isinstance(block, MoE)
    shapes = {
        name.removeprefix("mixer."): each for name, each in expert_calls.shapes(recipe).items() if "mixer." in name
    }
    block.load_state_dict(fixtures.weights(shapes))
    return block
