"""FSDP2 over a mesh of one rank divides a gradient twice by the factor of `set_gradient_divide_factor`, in float16 and
float64: the weights of experts that expert parallel shares with no data-parallel copy have such a mesh.
torchrun --standalone --nproc-per-node 1 docs/confirmed/torch_fsdp2_divides_twice.py      # torch 2.13.0, a CPU
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FACTOR = 4.0


def gradient(dtype: torch.dtype) -> float:
    """Of a sum of weights: 1 / FACTOR, if it is divided once."""
    model = nn.Linear(2, 2, bias=False).to(dtype)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    model.set_gradient_divide_factor(FACTOR)
    model(torch.ones(1, 2, dtype=dtype)).sum().backward()
    return float(model.weight.grad.full_tensor()[0, 0])


dist.init_process_group("gloo")
found = {str(dtype): gradient(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}
dist.destroy_process_group()
for name, value in found.items():
    print(f"{name}: the gradient is {value}, expected {1 / FACTOR}")
sys.exit([value * FACTOR for value in found.values()] != [1.0, 1.0, 1 / FACTOR, 1 / FACTOR])
