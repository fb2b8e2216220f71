"""Forked copies of this process as the ranks of a small process group on the CPU; a rank may crash without
harm to this process.

A new interpreter would take seconds to import torch, for each rank of each case.
"""

import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
import torch.distributed as dist

from contracts.instruments import accelerator

DEADLINE_S = 40.0  # of the whole world; a write takes 0.2 s, and a peer's death is noticed at once
Work = Callable[[int, str, Connection], None]
"""What a rank runs. Arguments: its rank, the rendezvous file, the connection for its result."""


@contextmanager
def forked_ranks(ranks: int, work: Work) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    """Each rank's process and the connection to it. Ranks that still run at the end are killed."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="meeting-") as meeting, warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads. The copies run none of theirs, and take none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        started: list[tuple[BaseProcess, Connection]] = []
        try:
            for rank in range(ranks):
                receiving, sending = context.Pipe(duplex=False)
                copy = context.Process(target=_on_the_cpu, daemon=True, args=(work, rank, f"{meeting}/store", sending))
                copy.start()
                sending.close()
                started.append((copy, receiving))
            yield started
        finally:
            for process, _ in started:
                process.kill()
                process.join()


def _on_the_cpu(work: Work, rank: int, meeting: str, sending: Connection) -> None:
    accelerator.hide()
    work(rank, meeting, sending)


def join_process_group(rank: int, ranks: int, meeting: str) -> None:
    """Initialise the default process group of the forked ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=2 * DEADLINE_S)
    )
