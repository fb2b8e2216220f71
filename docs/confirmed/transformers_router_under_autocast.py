"""DeepSeek-V3's router casts to float32 and multiplies under autocast, which rounds its logits to bfloat16 again.

Trainer(bf16=True) runs the model so. Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is
there.
"""
import sys

import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

config = DeepseekV3Config(hidden_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)
router = DeepseekV3TopkRouter(config)
with torch.no_grad():
    router.weight[:] = torch.tensor([1.001, 1.0005, 1.0, 1.0015])[:, None] / 8
x_TD = torch.ones(1, 8)
exact, _, best = router(x_TD)
with torch.autocast("cpu", torch.bfloat16):
    rounded, _, chosen = router(x_TD)
print(f"logits {exact.tolist()} ({exact.dtype}), under autocast {rounded.tolist()} ({rounded.dtype})")
print(f"experts {sorted(best.flatten().tolist())}, under autocast {sorted(chosen.flatten().tolist())}")
sys.exit(not (rounded.dtype is torch.bfloat16 and len(set(exact.flatten().tolist())) == 4))
