"""The environment that torchrun provides: the process group of a run, and the run's parallel execution in it."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.instruments.ranks import Place, stated, torch_distributed
from contracts.spec import Execution, Layout, grids, refuse
from contracts.stacks.reference.launch.trainer_arguments import TrainerArguments

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
PATIENCE_S = 600.0  # for ranks that load what others are still writing


@contextmanager
def distributed_world(device: str) -> Iterator[Place]:
    """This process's place, with a default process group if there are several ranks: gloo for tensors on the CPU, and
    NCCL for those on a CUDA device, which is chosen before anything touches one.

    A failing rank leaves the group as it is: destroying it is a collective, and torchrun ends the other ranks.

    Raises:
        Refused: if the environment states a place that does not exist, or if devices are fewer than ranks.
    """
    place = stated(os.environ)
    torch, dist = torch_distributed()
    if device == "cuda":
        _refuse_missing_devices()
        torch.cuda.set_device(place.local_rank)
    if place.world > 1:
        dist.init_process_group(BACKENDS[device], timeout=datetime.timedelta(seconds=PATIENCE_S))
    yield place
    if place.world > 1:
        dist.destroy_process_group()


def device_of(asked: str) -> str:
    """The device to train on: `auto` is CUDA if torch sees as many devices as this node has ranks."""
    if asked != "auto":
        return asked
    ranks, devices = _ranks_and_devices()
    return "cuda" if devices >= ranks else "cpu"


def _ranks_and_devices() -> tuple[int, int]:
    """The ranks of this node and the CUDA devices that torch sees, counted without a context on any of them."""
    torch, _ = torch_distributed()
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()


def _refuse_missing_devices() -> None:
    ranks, devices = _ranks_and_devices()
    if devices < ranks:
        problem = f"needs a device for each rank, and torch sees {devices} for the {ranks} of this node"
        raise refuse("--device", "cuda", problem, "start fewer ranks, or give --device cpu")


def execution_of(asked: TrainerArguments, place: Place, device: str) -> Execution:
    """One microbatch is `batch.micro` sequences of one data-parallel rank; parameters are sharded over those ranks.

    With context parallel the layout is the borrowed one, the only one that has it; there experts lie on ranks that read
    other tokens, and ep takes nothing from dp.
    """
    degrees, batch = asked.degrees, asked.recipe.batch
    layout: Layout = "borrowed" if degrees.cp > 1 else "own-axis"
    dp = len(grids(degrees, place.world, layout).dense.groups("dp")[0])
    return Execution(
        mode=asked.mode, degrees=degrees, layout=layout, world=place.world, fsdp=place.world > 1,
        microbatches=max(1, batch.total // (dp * batch.micro)), device=device,
    )  # fmt: skip
