"""torchtitan 0.2.2: a layer with experts counts the tokens of a validation too, and the next step moves its selection
bias by them. Exit code 0: it is so.
"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch

kernels = sys.modules["torchtitan.models.moe.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
histc = torch.histc  # a CPU counts no whole numbers
torch.histc = lambda x, **rest: histc(x.float(), **rest).to(x.dtype)
from torchtitan.models.moe import MoE, MoEArgs

torch.manual_seed(0)
moe = MoE(MoEArgs(4, 0, top_k=2, score_before_experts=False, use_grouped_mm=False, load_balance_coeff=1e-3), 16, 8)
with torch.no_grad():
    moe.init_weights(0.5, torch.device("cpu"))
moe.eval()
with torch.no_grad():
    moe(torch.randn(2, 8, 16))
counted = int(moe.tokens_per_expert.sum())
print(f"after one evaluation of 16 tokens tokens_per_expert holds {counted} assignments of the next step")
sys.exit(counted != 32)
