"""The R block of the reference over drawn shapes, against its oracle."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.instruments.oracles import recurrent as oracle
from contracts.law._support import scan_calls
from contracts.law._support.recipes import SMALL
from contracts.law._support.scan_calls import ScanCase
from contracts.spec import Mamba
from contracts.stacks.reference.model.blocks import M2RNN
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.stack import Reference

SETTINGS = settings(max_examples=12)


@st.composite
def case(draw: st.DrawFn) -> ScanCase:
    """Keys and values of any size, groups from 1 to the number of heads, sequences from one token up."""
    groups, share = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    mamba = Mamba(heads=groups * share, head_dim=draw(st.integers(1, 4)), state=draw(st.integers(1, 5)), groups=groups)
    length = draw(st.integers(1, 7))
    cuts = [
        sorted(draw(st.sets(st.integers(1, length), max_size=3)) | {length}) for _ in range(draw(st.integers(1, 2)))
    ]
    lengths = tuple(tuple(end - start for start, end in zip([0, *row], row, strict=False)) for row in cuts)
    recipe = replace(SMALL, hidden=draw(st.integers(2, 9)), heads=1, kv_groups=1, mamba=mamba)
    return ScanCase(block="m2rnn", recipe=recipe, lengths=lengths, state=True)


@given(drawn=case())
@SETTINGS
def test_m2rnn_equals_its_recurrence_in_every_shape(drawn: ScanCase) -> None:
    scan_calls.equals_its_definition(Reference(), drawn, oracle.m2rnn)


def test_the_recurrent_weight_begins_as_the_identity_of_each_head() -> None:
    mixer = M2RNN(SMALL, PARTS)
    assert torch.equal(mixer.W.detach(), torch.eye(8).expand(4, 8, 8))
