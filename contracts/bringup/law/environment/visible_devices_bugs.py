"""Mutants of `checks/environment/visible_devices.py`."""

from dataclasses import replace

from contracts.instruments.ranks import here
from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(
    Reference,
    "devices",
    "ENV-06a[on-2]: rank 1 has CUDA_VISIBLE_DEVICES='1', rank 0 of its node '0'",
    "ENV-06a[on-4]: rank 1 has CUDA_VISIBLE_DEVICES='1', rank 0 of its node '0'",
    bugs=("PG-16",),
)
def gives_each_process_its_own_device(devices, self):
    """Sets CUDA_VISIBLE_DEVICES=$LOCAL_RANK, so that every process has its GPU as "cuda:0"."""
    seen = devices(self)
    mine = here().local_rank
    return replace(seen, visible=str(mine), names=seen.names[mine : mine + 1], uses=0)


@broken(Reference, "devices", "ENV-06a[on-4]: rank 1 uses device 0, its local rank is 1")
def takes_the_first_device(devices, self):
    """Uses `torch.device("cuda")` without an index, on a node where every rank sees all devices."""
    return replace(devices(self), uses=0)


@broken(Reference, "devices", "ENV-06a[on-4]: rank 2 sees ['GPU-c', 'GPU-a'], rank 0 of its node ['GPU-a', 'GPU-c']")
def numbers_the_fastest_first(devices, self):
    """One rank enumerates the same cards in another order (CUDA_DEVICE_ORDER=FASTEST_FIRST only on that rank)."""
    names = ("GPU-a", "GPU-c")
    order = names[::-1] if here().rank == 2 else names
    return replace(devices(self), names=order)
