"""Megatron-Core's `position` policy drops tokens that came first: `torch.topk` breaks its ties as it likes.

One expert is asked by every token and has room for half of them; by position the first half would be kept.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
from megatron.core.transformer.moe.moe_utils import apply_router_token_dropping

TOKENS, EXPERTS = 64, 2
probs = torch.zeros(TOKENS, EXPERTS)
probs[:, 0] = 1.0
_, kept = apply_router_token_dropping(
    probs, probs.bool(), router_topk=1, capacity_factor=1.0, drop_policy="position", pad_to_capacity=False
)
places = kept[:, 0].nonzero().flatten().tolist()
print(f"{len(places)} slots; kept are tokens {places}")
print(f"dropped although they came before a kept one: {[t for t in range(max(places)) if t not in places]}")
sys.exit(places == list(range(len(places))))
