"""A token's gradients from its experts are added up one by one in bfloat16: of k ones, 256 are left (on a CPU).

torchtitan gathers tokens with one index, and that index's backward accumulates in the dtype of the activations; the way
forward, through its own scatter_add, gives all of them. Run with an interpreter that has torchtitan 0.3.0. Exit code 0:
the fault is there.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

for top_k in (8, 320):
    dispatcher = LocalTokenDispatcher.Config(num_experts=top_k, top_k=top_k).build()
    x_TD = torch.ones(4, 16, dtype=torch.bfloat16, requires_grad=True)
    scores_TK, experts_TK = torch.ones(4, top_k), torch.arange(top_k).repeat(4, 1)
    sent_RD, _, metadata = dispatcher.dispatch(x_TD, scores_TK, experts_TK, torch.full((top_k,), 4))
    out_TD = dispatcher.combine(sent_RD, metadata, x_TD)
    out_TD.sum().backward()
    forward, back = out_TD[0, 0].item(), x_TD.grad[0, 0].item()
    print(f"top-{top_k} with gates of 1: {top_k} ones add up to {forward:g}, their gradients to {back:g}")
sys.exit(not (forward == top_k and back == 256))
