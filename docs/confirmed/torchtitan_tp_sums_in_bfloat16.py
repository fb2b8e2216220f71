"""FSDP2 beside TP with SP: gradients of norms are summed over TP in bfloat16, whatever reduce_dtype says.

reduce_dtype=float32 is about FSDP's own reduction. The parts of a norm's gradient, of which each TP rank has one, are
added before it in the dtype of the activations (pytorch #190626). Exit code 0: it is so.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_tp_sums_in_bfloat16.py      # torch 2.13.0, on a CPU
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
)  # fmt: skip

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
net = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False))
whole = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True)
parallelize_module(net, mesh["tp"], whole)
up, down = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
plan = {"0": SequenceParallel(), "1": up, "3": down}
parallelize_module(net, mesh["tp"], plan)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
fully_shard(net, mesh=mesh["dp"], mp_policy=policy)
net(torch.randn(4, 16, 32)).float().square().mean().backward()
gradient = net[0].weight.grad.full_tensor()
rounded = int((gradient == gradient.bfloat16().float()).sum())
if dist.get_rank() == 0:
    print(f"{rounded} of {gradient.numel()} elements of the norm's gradient ({gradient.dtype}) are numbers of bfloat16")
dist.destroy_process_group()
sys.exit(0 if rounded == gradient.numel() else 1)
