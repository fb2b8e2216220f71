"""Megatron-Core refuses top-1 routing whose gate is a softmax over the chosen: its only form is the softmax before.

It says why: over one expert that softmax is 1 and teaches the router nothing. The gates of both forms differ, though.
Run with an interpreter that has megatron-core. Exit code 0: it is refused.
"""

import sys
import warnings

warnings.simplefilter("ignore")
from megatron.core.transformer.transformer_config import TransformerConfig

sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "add_bias_linear": False}
routed = {"num_moe_experts": 4, "moe_ffn_hidden_size": 8, "moe_router_load_balancing_type": "none"}
TransformerConfig(**sizes, **routed, moe_router_topk=2)
try:
    TransformerConfig(**sizes, **routed, moe_router_topk=1)
except (AssertionError, ValueError) as error:
    print(f"refused: {error}")
    sys.exit(0)
print("accepted")
sys.exit(1)
