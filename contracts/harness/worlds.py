"""A world of fewer ranks than there are: the first of them, for as long as one item is judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contracts.instruments.ranks import here, torch_distributed


@contextmanager
def narrowed(world: int, name: str) -> Iterator[None]:
    """Let the first `world` ranks, which all come here, have a default process group of their own.

    A stack finds what it would find if only they had been started. Afterwards there is no default group, and the ranks
    plugin makes a new one for everybody. `name` must be another for each world of a run.
    """
    if world == here().world:
        yield
        return
    _, dist = torch_distributed()
    backend = dist.get_backend_config()
    dist.destroy_process_group()
    dist.init_process_group(backend, store=_store(dist, name), rank=here().rank, world_size=world)
    dist.barrier()  # a rank that leaves at once would cut off one that is still connecting
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _store(dist: Any, name: str) -> Any:
    """torchrun's store, where nobody else writes: the same name comes again when torchrun has restarted the ranks."""
    store, _, _ = next(dist.rendezvous("env://"))
    return dist.PrefixStore(f"world/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}", store)
