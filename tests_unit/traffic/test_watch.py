"""The names by which a watched step calls its collectives."""

import pytest

pytest.importorskip("torch")
import torch.distributed  # registers the operators

from contracts.instruments import traffic

ONE_NAME = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "gather", "reduce", "barrier",
}  # fmt: skip


def test_every_collective_of_torch_has_one_of_nine_names() -> None:
    """Also in buckets that are sent together: a check that asks for reductions would not see those of another name."""
    every = [name.split("::") for name in torch._C._dispatch_get_all_op_names()]
    calls = {name.partition(".")[0].rstrip("_") for space, name in every if space in traffic.NAMESPACES[:2]}
    assert "reduce_scatter_tensor_coalesced" in calls
    names = {traffic.NAMES.get(call, call) for call in calls - {*traffic.SILENT, *traffic.PAIRED}}
    assert names <= ONE_NAME, names - ONE_NAME
