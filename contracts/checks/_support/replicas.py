"""Whether tensors that every rank holds whole are bit-identical on all ranks."""

from __future__ import annotations

from contracts.instruments.ranks import gathered, here
from contracts.spec.array import Arrays


def replicas_apart(held: Arrays) -> str:
    """Tensors that are not bit-identical on another rank, or missing there; empty where all agree. All ranks must call
    it.
    """
    mine = {name: each.fingerprint for name, each in held.items()}
    for rank, other in enumerate(gathered(mine)):
        unequal = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
        if unequal:
            return f"rank {here().rank} and rank {rank} hold unequal {', '.join(unequal[:3])}"
    return ""
