"""The environment that torchrun provides: the process group of a run, and the run's parallel execution in it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.instruments.ranks import Place, stated, torch_distributed
from contracts.spec.topology import Layout
from contracts.spec.training import Execution
from contracts.stacks.reference.launch.trainer_arguments import TrainerArguments

PATIENCE_S = 600.0  # for ranks that load what others are still writing


@contextmanager
def distributed_world() -> Iterator[Place]:
    """This process's place, with a default process group where there are several ranks.

    A failing rank leaves the group as it is: destroying it is a collective, and torchrun ends the other ranks.

    Raises:
        Refused: where the environment states a place that does not exist.
    """
    place = stated(os.environ)
    if place.world > 1:
        torch, dist = torch_distributed()
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(place.local_rank)
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=PATIENCE_S))
    yield place
    if place.world > 1:
        dist.destroy_process_group()


def execution_of(asked: TrainerArguments, place: Place) -> Execution:
    """One microbatch is `batch.micro` sequences of one data-parallel rank; parameters are sharded over those ranks.

    With context parallel the layout is the borrowed one, which alone has it; there experts lie on ranks that read
    other tokens, and ep takes nothing from dp.
    """
    degrees, batch = asked.degrees, asked.recipe.batch
    layout: Layout = "borrowed" if degrees.cp > 1 else "own-axis"
    alike = degrees.tp * degrees.pp * degrees.cp * (degrees.ep if layout == "own-axis" else 1)  # with the same rows
    rows = batch.total * alike // place.world
    return Execution(
        mode=asked.mode, degrees=degrees, layout=layout, world=place.world, fsdp=place.world > 1,
        microbatches=max(1, rows // batch.micro),
    )  # fmt: skip
