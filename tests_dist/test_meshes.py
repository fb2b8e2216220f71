"""Torch's caches of the meshes of earlier runs: cleared if their groups are closed, else kept."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest

from contracts.instruments.ranks import torch_distributed
from contracts.law._support import multi_rank_run as spread
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Execution, Session, Step
from contracts.stacks.reference.parallel import mesh
from contracts.stacks.reference.stack import Reference

ONLY_THE_WORLD = spread.own_axis(4, fsdp=True)
OF_ITS_OWN = spread.own_axis(4, tp=2, sp=True, fsdp=True)
MODEL = replace(spread.SPREAD, pattern="AE", depth=2)


def _step(execution: Execution) -> Step:
    stack = Reference()
    session = Session(
        recipe=MODEL, steps=1, execution=execution, batches=spread.batches(1),
        weights=large_expert_weights(stack, MODEL), observe=frozenset({"gradients"}),
    )  # fmt: skip
    return stack.train(session).steps[0]


@contextmanager
def _forgetting() -> Iterator[list[None]]:
    """How often torch is made to forget."""
    times: list[None] = []
    forget = mesh.forget_meshes

    def counted() -> None:
        times.append(None)
        forget()

    with mock.patch.object(mesh, "forget_meshes", counted):
        yield times


@pytest.mark.dist(world=4)
def test_torchs_cache_of_a_mesh_is_cleared_when_its_groups_are_closed() -> None:
    mesh.forget_meshes()
    taken, forgotten = [], []
    for execution in (ONLY_THE_WORLD, ONLY_THE_WORLD, OF_ITS_OWN, OF_ITS_OWN, ONLY_THE_WORLD, ONLY_THE_WORLD):
        with _forgetting() as times:
            taken.append(_step(execution))
        forgotten.append(len(times))
    assert forgotten == [1, 0, 1, 1, 1, 0]
    first, again, own, own_again, back, last = taken
    assert first == again == back == last
    assert own == own_again


@pytest.mark.dist(world=2)
def test_cached_results_of_another_world_are_dropped() -> None:
    _, dist = torch_distributed()
    another = dist.new_group()
    _step(spread.own_axis(2, fsdp=True))
    with _forgetting() as times, mock.patch.object(mesh, "_only_group", [weakref.ref(another)]):
        for _ in range(2):
            _step(spread.own_axis(2, fsdp=True))
    dist.destroy_process_group(another)
    assert len(times) == 1
