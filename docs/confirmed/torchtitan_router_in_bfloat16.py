"""Under torchtitan's mixed precision the router's weight is rounded to bfloat16 before its product in float32 is taken.

Run with an interpreter that has torchtitan 0.3.0. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.models.common.config_utils import make_router_config

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = make_router_config(dim=8, num_experts=4, gate_param_init={}, top_k=2, score_func="softmax", route_norm=True)
router = config.build()
with torch.no_grad():
    router.gate.weight[:] = torch.tensor([10.01, 10.005, 10.0, 10.015])[:, None] / 8
seen = [router.gate.weight.detach().clone()]
router.gate.register_forward_pre_hook(lambda gate, _: seen.append(gate.weight.detach().clone()))
fully_shard(router, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))  # as its own trainer does by default
x_BLD = torch.ones(1, 1, 8, dtype=torch.bfloat16)
_, experts, _ = router(x_BLD)
stored, read = ((x_BLD.float() @ weight.float().T).flatten().tolist() for weight in seen)
print(f"logits by the weight that is stored {stored}, by the one that the router reads ({seen[1].dtype}) {read}")
print(f"it chose experts {sorted(experts.flatten().tolist())}; the best are [0, 3]")
dist.destroy_process_group()
sys.exit(not (len(set(stored)) == 4 and len(set(read)) == 1))
