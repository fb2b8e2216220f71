"""In bfloat16 Megatron-Core counts the assignments of an expert in bfloat16: of 301 it counts 300, of 1001 1000.

The counts that move the expert bias are a buffer, which Float16Module casts. Exit code 0: the fault is there.
"""
import os, sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it would compile, for which a CPU wants a C++ compiler
import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.router import TopKRouter

torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_: self
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_router_topk=1, bf16=True,
    params_dtype=torch.bfloat16, moe_router_load_balancing_type="none", moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True, use_cpu_initialization=True)
bare = MegatronModule(config)
bare.router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
Float16Module(config, bare)
counted = {}
for tokens in (301, 1001):  # all alike, so that all choose one expert
    bare.router.local_tokens_per_expert.zero_()
    bare.router(torch.ones(tokens, 1, 8, dtype=torch.bfloat16))
    counted[tokens] = int(bare.router.local_tokens_per_expert.max())
print("assignments, and how many are counted:", counted)
torch.distributed.destroy_process_group()
sys.exit(all(given == told for given, told in counted.items()))
