"""The reference's dense MLP over drawn shapes, against its definition."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.instruments.oracles import mlp as oracle
from contracts.law._support.recipes import SMALL
from contracts.law.blocks import mlp as checks
from contracts.spec import Recipe
from contracts.stacks.reference.stack import Reference

SETTINGS = settings(max_examples=15)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Inner widths from 1 up, below and above hidden."""
    return replace(
        SMALL, moe=None, hidden=draw(st.integers(1, 12)), heads=1, kv_groups=1, ffn_hidden=draw(st.integers(1, 17)),
        activation=draw(st.sampled_from(("relu2", "swiglu"))), norm_eps=draw(st.sampled_from((1e-5, 0.1))),
    )  # fmt: skip


@given(recipe=recipes(), rows=st.integers(1, 3), length=st.integers(1, 9))
@SETTINGS
def test_the_mlp_equals_its_definition_in_every_shape(recipe: Recipe, rows: int, length: int) -> None:
    checks.the_mlp_is_its_definition(Reference(), recipe, ((length,),) * rows, "float64")


def test_the_mlp_oracle_equals_values_worked_out_by_hand() -> None:
    """h = (1, 1) out of (2, 2) with eps 0: w1 h = (3, -1), squared (9, 0), and w2 adds them up."""
    recipe = replace(SMALL, moe=None, hidden=2, heads=1, kv_groups=1, norm_eps=1e-30)
    weights = {
        "norm.weight": torch.ones(2, dtype=torch.float64),
        "mixer.w1.weight": torch.tensor([[1.0, 2.0], [1.0, -2.0]], dtype=torch.float64),
        "mixer.w2.weight": torch.tensor([[1.0, 1.0], [-1.0, 5.0]], dtype=torch.float64),
    }
    y_TD = oracle.dense(recipe, weights, torch.tensor([[2.0, 2.0]], dtype=torch.float64))
    assert torch.allclose(y_TD, torch.tensor([[9.0, -9.0]], dtype=torch.float64), rtol=0, atol=1e-12)
