"""A router with an expert bias raises when it is given the padding; with as many positions as experts it masks experts.

PR 6114 mends it on main, not in 0.19.2. Exit code 0: the fault is there. Run with megatron-core 0.17 or later.
"""
import os, sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it would compile, for which a CPU wants a C++ compiler
import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter

torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_router_topk=2,
    moe_router_load_balancing_type="none", moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
    use_cpu_initialization=True)
router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
raised = ""
try:
    router(torch.randn(6, 1, 8), padding_mask=torch.arange(6)[:, None] >= 4)
except RuntimeError as error:
    raised = str(error)
print(f"6 positions, 4 experts, 2 positions of padding: {raised or 'counted'}")
router.local_tokens_per_expert.zero_()
router(torch.randn(4, 1, 8), padding_mask=torch.arange(4)[:, None] >= 2)
counts = router.local_tokens_per_expert.int().tolist()
print(f"4 positions, 4 experts, the last 2 padding: counts {counts} of 2 tokens with 2 experts each")
torch.distributed.destroy_process_group()
sys.exit(not (raised and counts[2:] == [0, 0]))
