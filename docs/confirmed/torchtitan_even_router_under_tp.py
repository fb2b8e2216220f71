"""Under tensor parallel debug.moe_force_load_balance raises: its router gathers scores that are a DTensor by a tensor.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_even_router_under_tp.py      # 0.3.0, on a CPU"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch
import torch.distributed as dist

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.distributed import ParallelDims, utils as titan
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3 import qwen3_configs
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config

def passed(tp: int, even: bool) -> str:
    config = qwen3_configs["debugmodel_moe"]("flex")
    config.layers = config.layers[:1]
    config.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    config.layers[0].moe.router._debug_force_load_balance = even  # as debug.moe_force_load_balance sets it
    set_qwen3_sharding_config(config, enable_sp=True, enable_ep=False)
    model = config.build()
    model.init_states()
    if tp > 1:
        model.parallelize(ParallelDims(1, 1, 1, tp, 1, 1, tp, "partial_dtensor"))
    try:
        model(torch.arange(32).view(2, 16))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "runs"

dist.init_process_group("gloo")
titan.set_spmd_backend("partial_dtensor")
alone, plain, even = passed(1, True), passed(2, False), passed(2, True)
print(f"even on one rank: {alone}; under TP 2: {plain}; even under TP 2: {even}")
sys.exit(not (alone == plain == "runs" and "mixed torch.Tensor and DTensor" in even))
