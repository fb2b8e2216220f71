"""Sequence parallel without expert parallel, one row: the gradient that leaves the experts is wrong, the loss right.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_single_row.py   # 0.3.0, on a CPU; see #4794"""
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

def gradient(rows: int, tp: int) -> tuple[float, torch.Tensor]:
    config = qwen3_configs["debugmodel_moe"]("flex")
    config.layers = config.layers[:1]
    config.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    set_qwen3_sharding_config(config, enable_sp=True, enable_ep=False)
    model = config.build()
    torch.manual_seed(0)
    model.init_states()
    if tp > 1:
        model.parallelize(ParallelDims(1, 1, 1, tp, 1, 1, tp, "partial_dtensor"))
    logits = model(torch.arange(rows * 16).view(rows, 16))
    loss = (logits.full_tensor() if tp > 1 else logits).float().square().mean()
    loss.backward()
    grad = model.layers["0"].ffn_norm.weight.grad
    return loss.item(), grad.full_tensor() if tp > 1 else grad

dist.init_process_group("gloo")
titan.set_spmd_backend("partial_dtensor")
(loss, alone), (other, many), (_, two), (_, both) = gradient(1, 1), gradient(1, 2), gradient(2, 1), gradient(2, 2)
one, pair = (((a - b).norm() / b.norm()).item() for a, b in ((many, alone), (both, two)))
print(f"loss {loss:.6f} and {other:.6f}; the norm before the experts: off by {one:.0%} with one row, {pair:.1%} with two")
sys.exit(not (one > 0.5 and pair < 0.02 and abs(loss - other) < 1e-5))
