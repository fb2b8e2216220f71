"""Under --bf16 Megatron-Core holds the router's weight in bfloat16; --moe-router-dtype fp32 computes from what is left.

Four experts whose weights for the one token are 10, 10.01, 10.02, 10.03; bfloat16 has steps of 0.0625 there.
Run with an interpreter that has megatron-core 0.17 or later. Exit code 0: the fault is there.
"""
import sys

import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
torch.cuda.current_device = lambda: "cpu"
config = TransformerConfig(
    num_layers=1, hidden_size=4, num_attention_heads=1, num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=4,
    moe_router_dtype="fp32", moe_router_load_balancing_type="none", bf16=True, params_dtype=torch.bfloat16,
    add_bias_linear=False, use_cpu_initialization=True)
router = TopKRouter(config, pg_collection=ProcessGroupCollection.use_mpu_process_groups())
weight = torch.zeros(4, 4)
weight[:, 0] = torch.tensor([10.0, 10.01, 10.02, 10.03])
router.weight.data.copy_(weight)
logits = router.gating(torch.tensor([1.0, 0, 0, 0], dtype=torch.bfloat16).view(1, 1, 4))
print(f"held in {router.weight.dtype}, computed in {logits.dtype}: {logits.flatten().tolist()}")
sys.exit(len(set(logits.flatten().tolist())) == 4)
