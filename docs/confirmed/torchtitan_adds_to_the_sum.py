"""torchtitan 0.3.0 adds 1e-20 to the sum of the chosen scores: faint gates do not add up to 1.

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
from torchtitan.models.common.config_utils import make_router_config

config = make_router_config(dim=1, num_experts=4, gate_param_init={}, top_k=2, score_func="sigmoid", route_norm=True)
for faint in (-20.0, -45.0):  # sigmoids of 2e-9 and 2.9e-20, which float64 and float32 hold with ease
    router = config.build().double()
    with torch.no_grad():
        router.gate.weight[:, 0] = torch.tensor([faint, -80.0, faint, -80.0])
    gates_BLK, _, _ = router(torch.ones(1, 1, 1, dtype=torch.float64))
    total = gates_BLK.sum().item()
    print(f"two logits of {faint:g}: the gates add up to {total:.15g}")
sys.exit(abs(total - 1) < 1e-6)
