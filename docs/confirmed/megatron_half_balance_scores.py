"""Megatron-Core 0.16 takes the sigmoids of a balance loss in bfloat16 without --moe-router-dtype. PR 2765.

Logits that bfloat16 holds, 2 and -2: the scores should be those of float32. Exit code 0: it is so.
"""
import sys

import torch
from megatron.core.transformer.moe.moe_utils import compute_routing_scores_for_aux_loss

logits = torch.tensor([[2.0, -2.0]])
whole, half = (compute_routing_scores_for_aux_loss(each, 1, "sigmoid")[1] for each in (logits, logits.bfloat16()))
print(f"the shares are {whole[0].tolist()} of float32 logits, {half[0].tolist()} of the same in bfloat16")
sys.exit(not float((whole - half.float()).abs().max()) > 1e-4)
