"""torchtitan 0.2.2 under TP, gates after the experts: each rank keeps its own share of the router's gradient, and the
router's weights, which are replicas, move apart. The outputs are right.

torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_router_gradient_of_one_rank.py    # 0.2.2, a CPU
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch
import torch.distributed as dist

kernels = sys.modules["torchtitan.models.moe.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
histc = torch.histc  # a CPU counts no whole numbers
torch.histc = lambda x, **rest: histc(x.float(), **rest).to(x.dtype)
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.models.llama4.infra.parallelize import apply_moe_ep_tp
from torchtitan.models.moe import MoE, MoEArgs

def run(mesh, x_BTD):
    torch.manual_seed(0)
    args = MoEArgs(4, 0, top_k=2, score_before_experts=False, use_grouped_mm=False, load_balance_coeff=None)
    block, model = torch.nn.Module(), torch.nn.Module()
    block.moe_enabled, block.moe, model.layers = True, MoE(args, 16, 8), torch.nn.ModuleDict({"0": block})
    with torch.no_grad():
        block.moe.init_weights(0.5, torch.device("cpu"))
    if mesh is not None:
        apply_moe_ep_tp(model, mesh, None, None, None)
    y_BTD = block.moe(x_BTD)
    y_BTD.square().sum().backward()
    grad = block.moe.router.gate.weight.grad
    return y_BTD, grad.to_local() if mesh is not None else grad

dist.init_process_group("gloo")
rank, x_BTD = dist.get_rank(), torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))
(y, alone), (part, mine) = run(None, x_BTD), run(init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), x_BTD.chunk(2, 1)[rank])
off, same = ((mine - alone).norm() / alone.norm()).item(), torch.allclose(part, y.chunk(2, 1)[rank], atol=1e-4)
print(f"rank {rank}: the router's gradient is {off:.0%} off; equal outputs: {same}")
sys.exit(not (off > 0.1 and same))
