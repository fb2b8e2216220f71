"""The reference's attention over drawn shapes, against its definition, and far out."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from contracts.instruments import fixtures, numerics
from contracts.instruments.oracles import attention as oracle
from contracts.law._support.attention_calls import Lengths, call_of, oracle_difference
from contracts.law._support.recipes import A_LAYER, SMALL, SMALL_DSA, SMALL_MLA
from contracts.law.blocks.attention_causality import SEEN, attention_does_not_see_what_follows
from contracts.spec import FLOAT64, Dsa, Mla, Recipe, Refused
from contracts.stacks.reference.model.blocks.common import packing
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.stack import Reference

SETTINGS = settings(max_examples=12)


@st.composite
def packs(draw: st.DrawFn) -> Lengths:
    """One to three rows of one to eleven tokens, each cut into documents of its own."""
    length = draw(st.integers(1, 11))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=3))) if length > 1 else []
        rows.append(tuple(end - start for start, end in zip([0, *cuts], [*cuts, length], strict=True)))
    return tuple(rows)


@st.composite
def grouped(draw: st.DrawFn) -> Recipe:
    """Any number of query heads to a KV head, an even head_dim from 2 to 10, with and without QK norm."""
    groups, readers, half = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    heads = groups * readers
    return replace(
        SMALL, hidden=heads * 2 * half, heads=heads, kv_groups=groups, qk_norm=draw(st.booleans()),
        rope_theta=draw(st.sampled_from((10, 10_000, 500_000))), norm_eps=draw(st.sampled_from((1e-5, 0.1))),
    )  # fmt: skip


@st.composite
def latent(draw: st.DrawFn) -> Recipe:
    """Latents narrower and wider than a head, values wider and narrower than keys."""
    dims = st.integers(1, 9)
    mla = Mla(
        q_lora=draw(dims), kv_lora=draw(dims), qk_head=draw(dims), qk_rope=2 * draw(st.integers(1, 3)),
        v_head=draw(dims),
    )  # fmt: skip
    return replace(SMALL_MLA, mla=mla, heads=draw(st.sampled_from((1, 2, 3))), kv_groups=1)


@given(recipe=grouped() | latent(), lengths=packs())
@settings(max_examples=24)
def test_dense_attention_equals_its_definition_in_every_shape(recipe: Recipe, lengths: Lengths) -> None:
    call = call_of(Reference(), recipe, lengths)
    assert not oracle_difference(call, Reference().run_block(call), FLOAT64)


@given(recipe=latent(), lengths=packs(), top_k=st.integers(1, 12), heads=st.integers(1, 4), more=st.integers(0, 3))
@SETTINGS
def test_sparse_attention_reads_min_of_k_and_the_visible_keys(
    recipe: Recipe, lengths: Lengths, top_k: int, heads: int, more: int
) -> None:
    size = recipe.mla.qk_rope + more
    recipe = replace(recipe, dsa=Dsa(a_ranks=(0,), index_heads=heads, index_head_dim=size, top_k=top_k))
    call = call_of(Reference(), recipe, lengths)
    run = Reference().run_block(call)
    assert not oracle_difference(call, run, FLOAT64)
    visible = [[t + 1 for length in row for t in range(length)] for row in lengths]
    counts = numerics.tensor(run.seen["selected"]).sum(-1).tolist()
    assert counts == [[min(top_k, count) for count in row] for row in visible]


@pytest.mark.parametrize("theta", [10, 10_000, 500_000])
def test_rope_is_as_precise_at_65536_as_at_the_start(theta: int) -> None:
    mixer = PARTS.attention(replace(SMALL, hidden=128, heads=2, kv_groups=1, rope_theta=theta), PARTS)
    position = 65_536
    x_BTHd = fixtures.normal("x", (1, 1, 2, 64))
    there = packing(x_BTHd[..., 0])._replace(positions_BT=torch.tensor([[position]]))
    turned_BTHd = mixer.rotate(x_BTHd, there)
    for head in range(2):
        want = oracle.rotated(x_BTHd[0, 0, head], position, theta)
        assert not numerics.difference("a turned head", turned_BTHd[0, 0, head], want, FLOAT64)
    low = mixer.rotate(x_BTHd.float(), there).double()
    assert float((low - turned_BTHd).abs().max()) < 1e-6, "float32 angles are off by 1e-3 here"


def test_a_definition_worked_out_by_hand_holds_the_oracle() -> None:
    """Two tokens, one head of two elements: rope turns by one radian, and the scores are cosines."""
    quarter = oracle.rotated(torch.tensor([1.0, 0.0], dtype=torch.float64), 1, 10_000)
    assert torch.allclose(quarter, torch.tensor([math.cos(1), math.sin(1)], dtype=torch.float64), rtol=0, atol=1e-15)
    keys, values = torch.tensor([[math.log(3)], [0.0]]), torch.tensor([[4.0], [8.0]])
    assert oracle.softmax_mean(torch.tensor([1.0]), keys, values, 1.0).item() == pytest.approx(5.0)
    assert oracle.positions(torch.tensor([7, 7, 9]), 3) == ([[0], [0, 1], [2]], [0, 1, 0])
    scores = torch.tensor([[3.0, -math.inf, -math.inf], [1.0, 2.0, -math.inf], [5.0, 1.0, 4.0]])
    assert oracle.selection(scores, 2).tolist() == [[True, False, False], [True, True, False], [True, False, True]]
    assert oracle.margin(scores, 2) == 3.0


def test_an_odd_head_is_refused_with_its_size() -> None:
    with pytest.raises(Refused, match=r"head_dim = 3: must be even"):
        PARTS.attention(replace(SMALL, hidden=12, heads=4), PARTS)


def test_an_index_head_that_cannot_hold_rope_is_refused_with_both_sizes() -> None:
    recipe = replace(SMALL_DSA, dsa=Dsa(a_ranks=(0,), index_heads=2, index_head_dim=3))
    with pytest.raises(Refused, match=r"dsa.index_head_dim = 3: must hold mla.qk_rope \(4\)"):
        PARTS.mixer(recipe, A_LAYER, "nemo_native")


@pytest.mark.parametrize("case", ["loud", "loud-packed"])
def test_a_softmax_that_saturates_to_an_exact_zero_gradient_holds(case: str) -> None:
    """As on a CUDA device; torch's flash kernel for CPUs leaves noise there."""
    with sdpa_kernel(SDPBackend.MATH):
        attention_does_not_see_what_follows(Reference(), *SEEN[case])
