"""The M and R blocks of the reference over drawn shapes, against their oracles."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import contracts.stacks.reference
from contracts.instruments import fixtures
from contracts.instruments.oracles import mamba as oracle
from contracts.instruments.oracles import recurrent
from contracts.law._support import scan_calls
from contracts.law._support.recipes import SMALL
from contracts.law._support.scan_calls import ScanCase
from contracts.spec import Mamba, Recipe, Refused
from contracts.stacks.reference.model.blocks import Mamba2, Mamba3
from contracts.stacks.reference.model.blocks.chunked_scan import chunked_scan
from contracts.stacks.reference.model.blocks.common import packing
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.stack import Reference

SETTINGS = settings(max_examples=12)
ORACLES = {"mamba2": oracle.mamba2, "mamba3": oracle.mamba3, "m2rnn": recurrent.m2rnn}


@st.composite
def case(draw: st.DrawFn, block: str) -> ScanCase:
    """Groups from 1 to the number of heads, sequences from one token up, documents of any length, chunks of any. The
    states of R are of any size.

    A state is given: without one a single token turns nothing, and its gradient by the angle is nothing but rounding.
    """
    groups, share = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    state = draw(st.integers(1, 5) if block == "m2rnn" else st.sampled_from((4, 8, 12)))
    mamba = Mamba(heads=groups * share, head_dim=draw(st.integers(1, 5)), state=state, groups=groups)
    length = draw(st.integers(1, 9))
    cuts = [
        sorted(draw(st.sets(st.integers(1, length), max_size=3)) | {length}) for _ in range(draw(st.integers(1, 2)))
    ]
    lengths = tuple(tuple(end - start for start, end in zip([0, *row], row, strict=False)) for row in cuts)
    recipe = replace(SMALL, hidden=draw(st.integers(2, 9)), heads=1, kv_groups=1, mamba=mamba)
    return ScanCase(block=block, recipe=recipe, lengths=lengths, state=True, chunk=draw(st.integers(1, 10)))


@pytest.mark.parametrize("block", ORACLES)
@given(data=st.data())
@SETTINGS
def test_a_recurrent_block_equals_its_recurrence_in_every_shape(block: str, data: st.DataObject) -> None:
    scan_calls.equals_its_definition(Reference(), data.draw(case(block)), ORACLES[block])


def tiny(state: int) -> Recipe:
    return replace(SMALL, hidden=4, heads=1, kv_groups=1, mamba=Mamba(heads=4, head_dim=2, state=state, groups=2))


def test_mamba3_with_its_step_at_the_end_and_no_turn_is_mamba2() -> None:
    """λ = 1, no angle: the recurrence of one oracle equals the other's and the chunked scan's."""
    length, heads, width, state = 11, 4, 3, 8
    x, dt = fixtures.normal("x", (length, heads, width)), fixtures.normal("dt", (length, heads)).exp()
    b, c = (fixtures.normal(name, (length, heads, state)) for name in "bc")
    a, whole = -fixtures.normal("a", (heads,)).exp(), torch.zeros(length, dtype=torch.int64)
    two, last = oracle.mamba2_core(x, dt, a, b, c, whole, None)
    inputs = oracle.Mamba3Inputs(
        q_Thn=c, k_Thn=b, v_Thp=x, dt_Th=dt, log_decay_Th=dt * a, end_Th=torch.ones_like(dt),
        turn_ThS=torch.zeros(length, heads, state // 4, dtype=torch.float64),
    )  # fmt: skip
    three, states = oracle.mamba3_core(inputs, whole, {})
    torch.testing.assert_close(three, two, rtol=0, atol=0)
    torch.testing.assert_close(states["ssm"], last, rtol=0, atol=0)
    scanned, end = chunked_scan((dt[..., None] * x)[None], (dt * a)[None], b[None], c[None], packing(x[None]), None, 4)
    torch.testing.assert_close(scanned[0], two, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(end[0], last, rtol=1e-12, atol=1e-12)


def test_a_document_is_bit_identical_whatever_the_decay_of_the_one_before() -> None:
    """Differences of cumulative sums would let a decay of -1e4 eat twelve digits of what follows in its chunk."""
    length, heads = 12, 2
    decay = -fixtures.normal("decay", (1, length, heads)).abs()
    u, k, q = (fixtures.normal(name, (1, length, heads, 3)) for name in "ukq")
    packed = packing(u, fixtures.documents(((5, 7),)))
    one, _ = chunked_scan(u, decay, k, q, packed, None, 64)
    two, _ = chunked_scan(u, torch.cat([decay[:, :5] * 1e12, decay[:, 5:]], dim=1), k, q, packed, None, 64)
    assert torch.equal(one[:, 5:], two[:, 5:])


def test_initial_values_of_mamba_are_in_mamba_ssms_ranges() -> None:
    torch.manual_seed(0)
    mixer = Mamba2(replace(SMALL, mamba=Mamba(heads=64, head_dim=4, state=8, groups=8)), PARTS)
    mixer.requires_grad_(False)
    step = torch.nn.functional.softplus(mixer.dt_bias)
    assert 1e-3 * 0.999 <= float(step.min()) < 3e-3
    assert 3e-2 < float(step.max()) <= 0.1 * 1.001
    assert float(mixer.A_log.min()) >= 0
    assert float(mixer.A_log.max()) <= math.log(16)
    for each in (mixer.conv_x, mixer.conv_b, mixer.conv_c):  # 1/sqrt(4 inputs): a fan-in of None gave zeros
        for tensor in (each.weight, each.bias):
            assert 0.2 < float(tensor.abs().mean()) < 0.3
            assert float(tensor.abs().max()) <= 0.5


def test_a_state_size_whose_half_is_odd_is_refused() -> None:
    with pytest.raises(Refused, match=r"mamba\.state"):
        Mamba3(tiny(6), PARTS)


def test_every_einsum_of_the_reference_has_at_most_two_factors() -> None:
    """torch does for three factors and more if that package is installed, and JAX brings it: COMP-04b was red there."""
    folder = Path(contracts.stacks.reference.__file__).parent
    found = re.findall(r'einsum\(\s*"([^"]+)->', "".join(each.read_text() for each in folder.rglob("*.py")))
    assert len(found) > 8
    assert [each for each in found if each.count(",") > 1] == []
