"""Under torchtitan's mixed precision a model hands over logits in bfloat16, and its loss makes them float32.

Run with an interpreter that has torchtitan 0.3.0. Exit code 0: it does.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3 import qwen3_configs

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = qwen3_configs["debugmodel"]("flex")
config.layers = config.layers[:1]
config.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
model = config.build()
model.init_states()
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
apply_fsdp_to_decoder(model, mesh, param_dtype=torch.bfloat16, reduce_dtype=torch.float32, pp_enabled=False)
tokens_BT = torch.arange(16)[None]
logits_BTV = model(tokens_BT)
loss = cross_entropy_loss(logits_BTV, tokens_BT)
wide = torch.nn.functional.cross_entropy(logits_BTV[0].double(), tokens_BT[0], reduction="sum")
off = abs(loss.item() - wide.item()) / wide.item()
print(f"logits are {logits_BTV.dtype}, the loss is {loss.dtype} and off by {off:.1e} from that of these logits in float64")
dist.destroy_process_group()
sys.exit(not (logits_BTV.dtype == torch.bfloat16 and loss.dtype == torch.float32 and off < 1e-5))
