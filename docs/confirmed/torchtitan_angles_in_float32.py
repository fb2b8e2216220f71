"""torchtitan 0.3.0 computes the angles of rope in float32: at position p an angle is off by up to p * 2**-24.

Run with an interpreter that has torchtitan. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.models.common import ComplexRoPE, CosSinRoPE

off = []
for length, base in ((1027, 10.0), (65_536, 500_000.0)):
    angles = (length - 1) / base ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    for kind in (CosSinRoPE, ComplexRoPE):
        last = kind.Config(dim=8, max_seq_len=length, theta=base).build().cache[-1]
        cosines = last.real if last.is_complex() else last[:4]
        off.append((cosines.double() - angles.cos()).abs().max().item())
        print(f"{kind.__name__}, {length} tokens, base {base:g}: the last cosines are off by {off[-1]:.1e}")
print("float32 holds a cosine to 6e-8")
sys.exit(not all(each > 2e-6 for each in off))
