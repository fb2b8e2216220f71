"""Weights as a run leaves them to others, in the dtype that was asked for."""

from __future__ import annotations

from contracts import instruments
from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.spec.array import Element
from contracts.spec.checkpointing import Checkpointing

TRAINED: dict[str, Element] = {"embedding.weight": "float32", "layers.0.mixer.wq.weight": "bfloat16"}
COUNTED = 2**31 + 7
"""A counter of tokens, which no float of 32 bits holds."""
DTYPES: dict[str, tuple[Element]] = {each: (each,) for each in ("float32", "bfloat16", "float16")}


@contract("CKPT-06f", asks="export_weights", cases=DTYPES, source="torchtitan #4166")
def an_export_has_the_dtype_that_was_asked_for(stack: Checkpointing, dtype: Element) -> None:
    """Every weight of an export has the dtype that was asked for, whatever dtype training held it in, and its values
    are rounded once. Whole numbers keep dtype and value.

    What skips the conversion where float32 is asked for leaves bfloat16 as it is, and who reads the files as float32
    takes two weights for one. A counter of tokens in bfloat16 is off by millions.
    """
    import torch

    numerics = instruments.numerics
    held = {name: torch.linspace(-1.7, 1.3, 24).view(4, 6).to(getattr(torch, each)) for name, each in TRAINED.items()}
    counter = torch.tensor([COUNTED, 3])
    got = stack.export_weights(numerics.arrays({**held, "layers.1.mixer.seen": counter}), dtype)
    want = {name: each.to(getattr(torch, dtype)) for name, each in held.items()}
    words = saved_states.bit_difference(got, numerics.arrays({**want, "layers.1.mixer.seen": counter}))
    assert not words, f"exported in {dtype}, {words}"
