"""Many tensors gathered together equal what torch gathers one by one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from contracts.stacks.reference.parallel.placements import full_tensors, shard_like

PLACED: dict[str, tuple[tuple[int, ...], tuple[Placement, Placement]]] = {
    "over both": ((8, 6), (Shard(0), Shard(1))),
    "twice over one dim": ((12, 5), (Shard(0), Shard(0))),
    "uneven": ((5, 3), (Shard(0), Shard(1))),
    "fewer lines than ranks": ((1, 3), (Shard(0), Shard(1))),
    "over the first": ((7, 4), (Shard(0), Replicate())),
    "over the second": ((7, 3), (Replicate(), Shard(1))),
    "over neither": ((3,), (Replicate(), Replicate())),
    "a stack of matrices": ((4, 3, 10), (Shard(2), Shard(0))),
}


@contextmanager
def mesh_2x2(*dims: str) -> Iterator[DeviceMesh]:
    """A mesh of two times two ranks, whose groups are taken down after it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=dims)
    dist.barrier()  # a rank that is through must not close a group to which another still connects
    yield mesh
    for group in mesh.get_all_groups():
        dist.destroy_process_group(group)


@pytest.mark.dist(world=4)
def test_tensors_gathered_together_equal_those_gathered_one_by_one() -> None:
    with mesh_2x2("shard", "tp") as mesh:
        torch.manual_seed(0)
        placed = {
            f"{name}, {dtype}": distribute_tensor(torch.rand(*shape).to(dtype), mesh, at)
            for name, (shape, at) in PLACED.items()
            for dtype in (torch.float32, torch.bfloat16)
        }
        found = full_tensors(placed)
        for name, tensor in placed.items():
            assert torch.equal(found[name], tensor.full_tensor()), name
            assert torch.equal(shard_like(found[name], tensor), tensor.to_local()), name


@pytest.mark.dist(world=4)
@pytest.mark.parametrize("rows", [8, 6, 2])  # of two rows, FSDP has none left for half of the ranks
def test_a_weight_sharded_by_tp_and_then_fsdp_is_gathered_in_its_order(rows: int) -> None:
    with mesh_2x2("shard", "tp") as mesh:
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, rows)
        kept = layer.weight.detach().clone()
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(distribute_tensor(parameter.detach(), mesh["tp"], [Shard(0)])))
        fully_shard(layer, mesh=mesh["shard"])
        assert torch.equal(full_tensors(dict(layer.named_parameters()))["weight"], kept)
        held = layer.weight
        assert isinstance(held, DTensor)
        assert torch.equal(shard_like(kept, held), held.to_local())


@pytest.mark.dist(world=4)
def test_a_rank_gathers_the_copies_of_its_own_replica() -> None:
    with mesh_2x2("replica", "shard") as mesh:
        replica, shard = mesh.get_local_rank("replica"), mesh.get_local_rank("shard")
        mine = torch.full((2,), 10.0 * replica + shard)
        (found,) = full_tensors(
            {"drifted": DTensor.from_local(mine, mesh, (Replicate(), Shard(0)), run_check=False)}
        ).values()
        assert found.tolist() == [10.0 * replica] * 2 + [10.0 * replica + 1] * 2, dist.get_rank()
