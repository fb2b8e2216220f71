"""torchtitan's Muon orthogonalizes by products in bfloat16, whatever the weights are in.

Run with an interpreter that has torchtitan 0.3.0. Exit code 0: it does.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.distributed.flex_shard.dist_muon import _compute_muon_direction

torch.manual_seed(0)
gradient = torch.randn(24, 24)
coefficients = (a, b, c) = (3.4445, -4.7750, 2.0315)
found = torch.empty_like(gradient)
_compute_muon_direction(gradient, ns_coefficients=coefficients, ns_steps=5, eps=1e-7, out=found)
off = {}
for dtype in (torch.float64, torch.float32, torch.bfloat16):
    x = (gradient.double() / gradient.double().norm()).to(dtype)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    off[dtype] = ((found - x).norm() / x.norm()).item()
print(f"gradient and direction are {found.dtype}; off from the iteration in " + ", ".join(
    f"{dtype} by {each:.1e}" for dtype, each in off.items()))
sys.exit(not (off[torch.float32] > 1e-3 and torch.equal(found, found.bfloat16().float())))
