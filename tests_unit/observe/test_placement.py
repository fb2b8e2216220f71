"""The global indices that a rank holds equal those of the values that DTensor gives it."""

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from contracts.observe.placement import Held, held  # noqa: E402
from contracts.observe.sketch import BUCKETS, fingerprint, sketch, whole  # noqa: E402

LAYOUTS = {
    "rows": ((4,), (8, 6), (Shard(0),)),
    "columns-uneven": ((4,), (3, 7), (Shard(1),)),
    "fewer-rows-than-ranks": ((4,), (2, 3), (Shard(0),)),
    "two-axes": ((2, 2), (5, 7), (Shard(0), Shard(1))),
    "one-axis-twice": ((2, 2), (9, 2), (Shard(0), Shard(0))),
    "strided": ((2, 2), (12, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "strided-uneven": ((2, 2), (11, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "replicated-and-sharded": ((2, 2), (5, 4), (Replicate(), Shard(0))),
    "replicated": ((4,), (5,), (Replicate(),)),
}  # fmt: skip


def _on_every_rank(mesh_shape: Sequence[int], tensor: torch.Tensor, placements: Sequence[object]) -> list[Held]:
    found = []
    for rank in range(4):
        dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", tuple(mesh_shape))
            found.append(held(distribute_tensor(tensor, mesh, placements, src_data_rank=None)))  # type: ignore[arg-type]
        finally:
            dist.destroy_process_group()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_a_dtensor_are_placed_and_add_up_to_the_whole(layout: str) -> None:
    mesh, shape, placements = LAYOUTS[layout]
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    ranks = _on_every_rank(mesh, tensor, placements)
    for each in ranks:
        assert each.pieces is not None
        [piece] = each.pieces
        assert torch.equal(tensor[torch.meshgrid(*piece.indices, indexing="ij")], each.local)
    parts = {each.part: each for each in ranks if each.first}
    assert set(parts) == {each.part for each in ranks}  # somebody writes the sketch of each part
    assert len(parts) == sum(each.first for each in ranks)  # and nobody else does
    total = torch.zeros(BUCKETS, dtype=torch.float64)
    bits = 0
    for each in parts.values():
        total += sketch(each.local, each.pieces)
        bits += fingerprint(each.local, each.pieces)
    torch.testing.assert_close(total, sketch(tensor, whole(shape)))
    assert bits % 2**64 == fingerprint(tensor, whole(shape))


def test_partial_sums_of_ranks_add_up_to_the_sum() -> None:
    tensor = torch.randn(4, 3)
    total = torch.zeros(BUCKETS, dtype=torch.float64)
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2,))
            found = held(DTensor.from_local(tensor * (rank + 1), mesh, [Partial()], run_check=False))
        finally:
            dist.destroy_process_group()
        assert found.partial
        total += sketch(found.local, found.pieces)
    torch.testing.assert_close(total, sketch(3 * tensor, whole((4, 3))), rtol=1e-6, atol=1e-6)


def test_a_maximum_over_ranks_cannot_be_placed() -> None:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        found = held(DTensor.from_local(torch.ones(2), mesh, [Partial("max")], run_check=False))
    finally:
        dist.destroy_process_group()
    assert found.pieces is None
    assert "max" in found.part
