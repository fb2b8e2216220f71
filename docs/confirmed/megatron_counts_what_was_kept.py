"""With a capacity Megatron-Core moves the selection bias by the assignments that it kept, not by those that were asked.

Six tokens ask for expert 0, two for expert 1; each has three slots. The bias of expert 1 sees 3 against 2.
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
    num_layers=1, hidden_size=2, num_attention_heads=1, num_moe_experts=2, moe_router_topk=1, moe_ffn_hidden_size=4,
    moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_load_balancing_type="none",
    moe_expert_capacity_factor=0.75, moe_token_drop_policy="probs", add_bias_linear=False, use_cpu_initialization=True)
router = TopKRouter(config, pg_collection=ProcessGroupCollection.use_mpu_process_groups()).train()
router.weight.data.copy_(torch.eye(2))
tokens = torch.eye(2)[[0, 0, 0, 0, 0, 0, 1, 1]].view(8, 1, 2)
torch.compiler.set_stance("force_eager")
router(tokens)
print(f"asked for: [6, 2]; counted: {router.local_tokens_per_expert.tolist()}")
sys.exit(router.local_tokens_per_expert.tolist() == [6.0, 2.0])
