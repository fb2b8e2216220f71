"""Megatron-Core adds 1e-20 to the sum of the chosen sigmoids: faint gates do not add up to 1.

Four experts, two chosen: logits of -45 have sigmoids of 2.9e-20, which float64 (and float32) holds with ease. Two equal
ones weigh 0.5 each; with the term their sum is not 1.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function

for faint in (-20.0, -45.0):
    logits = torch.tensor([[faint, -80.0, faint, -80.0]], dtype=torch.float64)
    probs, _ = topk_routing_with_score_function(logits, 2, score_function="sigmoid", expert_bias=torch.zeros(4))
    total = probs.double().sum().item()
    print(f"two logits of {faint:g}: the gates add up to {total:.15g}")
sys.exit(abs(total - 1) < 1e-6)
