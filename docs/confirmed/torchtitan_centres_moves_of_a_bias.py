"""torchtitan 0.3.0 takes the mean of all moves of a selection bias off each: none moves by the whole rate.

Run with an interpreter that has torchtitan. Exit code 0: it does.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.components.optimizer import default_adamw, register_moe_load_balancing_hook
from torchtitan.distributed import ParallelDims
from torchtitan.models.qwen3 import qwen3_configs


class Alone(ParallelDims):
    def get_optional_mesh(self, dims, **_):  # type: ignore[no-untyped-def]
        return None


config = qwen3_configs["debugmodel_moe"]("flex")
config.layers = config.layers[:1]
config.layers[0].moe.load_balance_coeff = 1e-3
model = config.build()
model.init_states()
optimizers = default_adamw(lr=0.0).build(model_parts=[model])
register_moe_load_balancing_hook(
    optimizers, [model], Alone(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, world_size=1)
)
moe = model.layers["0"].moe
moe.tokens_per_expert_E.fill_(1)
moe.tokens_per_expert_E[0] = 9  # one expert has more than the mean, all others fewer
optimizers.step()
moved = moe.expert_bias_E.tolist()
print(f"of {len(moved)} experts the first has moved by {moved[0]:.6g}, the others by {moved[1]:.6g}; the rate is 0.001")
sys.exit(not (abs(sum(moved)) < 1e-6 and abs(moved[0]) > 1.5e-3))
