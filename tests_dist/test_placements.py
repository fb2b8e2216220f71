"""Tensors that lie as another does: put together from parts, copied, blank."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from contracts.instruments.ranks import here
from contracts.stacks.reference.parallel.placements import from_local_part, local_part, placed_copy, placed_zeros

SHAPE = (5, 3)  # rank 0 holds three lines of five, rank 1 two


@pytest.mark.dist(world=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_dtensor_made_from_parts_has_the_others_placement_and_its_own_dtype(dtype: torch.dtype) -> None:
    whole = torch.arange(15.0).reshape(SHAPE)
    like = distribute_tensor(whole, init_device_mesh("cpu", (2,)), [Shard(0)]).requires_grad_()
    mine = whole[3 * here().rank :][:3].to(dtype) + 100
    found = from_local_part(mine, like)
    assert (found.dtype, found.shape, found.placements) == (dtype, like.shape, like.placements)
    assert found.to_local().data_ptr() == mine.data_ptr(), "the part is not copied"
    assert not found.requires_grad
    assert torch.equal(found.full_tensor(), whole.to(dtype) + 100)
    assert torch.equal((found * 2).full_tensor(), (whole.to(dtype) + 100) * 2)

    again, zeros = placed_copy(like), placed_zeros(like)
    local_part(again).add_(1)
    assert torch.equal(again.full_tensor(), whole + 1)
    assert torch.equal(like.full_tensor(), whole)
    assert torch.equal(zeros.full_tensor(), torch.zeros(SHAPE))
