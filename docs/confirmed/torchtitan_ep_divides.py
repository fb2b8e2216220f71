"""ParallelDims accepts an expert degree that does not divide dp_shard * cp * tp, and fails when the mesh is cut.
python docs/confirmed/torchtitan_ep_divides.py      # torchtitan 0.3.0 or 0.2.2, on a CPU"""
# ruff: noqa: E402, I001
import dataclasses
import importlib.util
import sys
import types

import torch
import torch.distributed as dist

if importlib.util.find_spec("triton") is None:  # 0.2.2 imports it for a kernel that is not called here
    kernels = sys.modules["torchtitan.models.moe.kernels"] = types.ModuleType("kernels")
    kernels.generate_permute_indices = None
import torchtitan.tools.utils as utils

utils.device_type, utils.device_module = "cpu", torch.cpu
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed.parallel_dims import ParallelDims

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=32)
known = {field.name for field in dataclasses.fields(ParallelDims)}  # etp is 0.2.2's, spmd_backend 0.3.0's
asked = {"dp_replicate": 1, "dp_shard": -1, "cp": 1, "tp": 2, "pp": 2, "ep": 5, "etp": 1, "world_size": 32}
asked |= {"spmd_backend": "partial_dtensor"}
dims = ParallelDims(**{name: value for name, value in asked.items() if name in known})
print(f"accepted: ep 5 with dp_shard {dims.dp_shard} * cp 1 * tp 2 = {dims.dp_shard * 2}")
try:
    dims.build_mesh()
except Exception as error:
    print(f"and refused when the mesh is built: {type(error).__name__}: {error}")
    sys.exit(0)
sys.exit(1)
