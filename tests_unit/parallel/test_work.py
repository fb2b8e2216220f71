"""How much work a process does, counted: what computes counts once, and what only learns a shape does not."""

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from contracts.instruments.work import counted
from contracts.stacks.kit.worlds import pretended


def test_a_product_of_fake_tensors_is_no_work() -> None:
    with counted() as work, FakeTensorMode():
        torch.ones(2, 3) @ torch.ones(3, 5)
    assert work.operations == 0


def test_the_first_product_and_update_of_dtensors_count_once_with_this_ranks_part() -> None:
    """The first time DTensor tries each operator on fake tensors of the whole size."""
    with pretended(2, 0):
        mesh = init_device_mesh("cpu", (2,))
        rows = DTensor.from_local(torch.ones(7, 3), mesh, [Shard(0)])
        columns = DTensor.from_local(torch.ones(3, 5), mesh, [Replicate()])
        weight = torch.nn.Parameter(DTensor.from_local(torch.ones(4, 11), mesh, [Shard(0)]))
        weight.grad = torch.ones_like(weight)
        with counted() as work:
            rows @ columns
            torch.optim.AdamW([weight], fused=True).step()
    assert work.updated == 4 * 11
    assert work.operations == 2 * 7 * 3 * 5
