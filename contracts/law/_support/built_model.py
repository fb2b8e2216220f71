"""The presets whose models are built, and the number of elements of a parameter."""

from math import prod
from typing import Protocol

from contracts.spec import Blocks, Mode, Parameter, Stack, Training
from contracts.spec.capacity import Capacity

FLAGSHIP = "nam56r_h200_bf16_v1"


BOTH_MODES: tuple[Mode, ...] = ("nemo_native", "author_dp")


class BuiltStack(Blocks, Training, Capacity, Stack, Protocol):
    """A stack that answers about blocks, models and counts."""


PRESETS = {name: (name,) for name in (
    FLAGSHIP, "nam56r_h200_mla_mtp1_bf16_v1", "nam52_h200_dense_ref_v1", "nam52_h200_9full_4sparse_pinned_v1",
    "nam52r_h200_4full_9sparse_candidate_v1", "tiny-nam56r", "tiny-nam52r",
)}  # fmt: skip


def size_of(row: Parameter) -> int:
    return prod(row.shape)
