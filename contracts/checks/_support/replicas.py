"""Tensors that every rank holds whole: whether all ranks hold the same, to the bit."""

from __future__ import annotations

from contracts.instruments.ranks import gathered, here
from contracts.spec.array import Arrays


def replicas_apart(held: Arrays) -> str:
    """Which tensors another rank has with other bits, or not at all; nothing where all hold the same. All ranks ask."""
    mine = {name: each.fingerprint for name, each in held.items()}
    for rank, other in enumerate(gathered(mine)):
        unequal = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
        if unequal:
            return f"rank {here().rank} and rank {rank} hold unequal {', '.join(unequal[:3])}"
    return ""
