"""Mutants of `checks/environment/visible_devices.py`."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.instruments.ranks import here
from contracts.spec.world import SeenDevices
from contracts.stacks.reference.stack import Reference


@mutant(of="ENV-06a", case="on-4", says="rank 1 has CUDA_VISIBLE_DEVICES='1', rank 0 of its node '0'", bugs=("PG-16",))
@mutant(of="ENV-06a", case="on-2", says="rank 1 has CUDA_VISIBLE_DEVICES='1', rank 0 of its node '0'", bugs=("PG-16",))
class GivesEachProcessItsOwnDevice(Reference):
    """Sets CUDA_VISIBLE_DEVICES=$LOCAL_RANK, so that every process has its GPU as "cuda:0"."""

    def devices(self) -> SeenDevices:
        seen = super().devices()
        mine = here().local_rank
        return replace(seen, visible=str(mine), names=seen.names[mine : mine + 1], uses=0)


@mutant(of="ENV-06a", case="on-4", says="rank 1 uses device 0, its local rank is 1")
class TakesTheFirstDevice(Reference):
    """Uses `torch.device("cuda")` without an index, on a node where every rank sees all devices."""

    def devices(self) -> SeenDevices:
        return replace(super().devices(), uses=0)


@mutant(of="ENV-06a", case="on-4", says="rank 2 sees ['GPU-c', 'GPU-a'], rank 0 of its node ['GPU-a', 'GPU-c']")
class NumbersTheFastestFirst(Reference):
    """One rank enumerates the same cards in another order (CUDA_DEVICE_ORDER=FASTEST_FIRST on that rank alone)."""

    def devices(self) -> SeenDevices:
        names = ("GPU-a", "GPU-c")
        order = names[::-1] if here().rank == 2 else names
        return replace(super().devices(), names=order)
