"""DeepSeek-V3's experts are looked up by where their tokens stand, at which torch.compile breaks the graph.

Run with an interpreter that has transformers 4.57.6. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

config = DeepseekV3Config(
    hidden_size=16, moe_intermediate_size=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
    topk_group=1,
)
moe = DeepseekV3MoE(config)
torch.nn.init.normal_(moe.gate.weight)
told = torch._dynamo.explain(moe)(torch.randn(1, 8, 16))
print(f"{told.graph_break_count} graph breaks: {str(told.break_reasons[0].reason).splitlines()[0]}")
sys.exit(not told.graph_break_count)
