"""Replicas add up their gradients after every microbatch, and not once a step: twice the bytes, the same numbers.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_reduces_every_microbatch.py  # 0.3.0, on a CPU"""
# ruff: noqa: E402, I001
import inspect
import sys
from types import ModuleType

import torch
import torch.distributed as dist

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torch.distributed.fsdp import FSDPModule
from torchtitan import trainer
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3 import qwen3_configs

dist.init_process_group("gloo")
config = qwen3_configs["debugmodel"]("flex")
config.layers = config.layers[:1]
config.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
model = config.build()
model.init_states()
mesh = ParallelDims(2, 1, 1, 1, 1, 1, 2, "partial_dtensor").get_mesh(["dp_replicate", "fsdp"])
apply_fsdp_to_decoder(model, mesh, torch.float32, torch.float32, pp_enabled=False)
for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
    module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
sent, reduce = [], dist.all_reduce
dist.all_reduce = lambda tensor, *given, **named: (sent.append(tensor.numel()), reduce(tensor, *given, **named))[1]
for _ in range(2):  # the microbatches of a step; between two of them its trainer says nothing about reductions
    model(torch.arange(64).view(4, 16)).square().mean().backward()
held = sum(each.numel() for each in model.parameters())
print(f"two microbatches: {sum(sent)} elements of gradients are reduced, the model has {held}")
source = inspect.getsource(trainer)
sys.exit(not (sum(sent) >= 2 * held and "set_requires" not in source))
