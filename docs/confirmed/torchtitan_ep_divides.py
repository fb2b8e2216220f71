"""ParallelDims accepts an expert degree that does not divide dp_shard * cp * tp, and fails when the mesh is cut.
python docs/confirmed/torchtitan_ep_divides.py      # torchtitan 0.3.0, on a CPU"""
# ruff: noqa: E402, I001
import sys

import torch
import torch.distributed as dist
import torchtitan.tools.utils as utils

utils.device_type, utils.device_module = "cpu", torch.cpu
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed.parallel_dims import ParallelDims

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=32)
dims = ParallelDims(1, -1, 1, 2, 2, 5, 32, "partial_dtensor")  # pp 2, tp 2, dp_shard 8; ep 5 does not divide 16
print("accepted: ep 5 with dp_shard * cp * tp = 16")
try:
    dims.build_mesh()
except Exception as error:
    print(f"and refused when the mesh is built: {type(error).__name__}: {error}")
    sys.exit(0)
sys.exit(1)
