"""In Megatron-Core experts with biases raise in the forward pass of training where neither TP nor EP cuts them.

Without either, linear_fc2 returns its sum over one rank, which is a view of its own output; MLP.forward adds the bias
times the gates to it in place. Run with an interpreter that has megatron-core 0.16 or later. Exit code 0: the fault is
there.
"""
import sys

import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.transformer_config import TransformerConfig

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=1, hidden_size=4, num_attention_heads=1, num_moe_experts=2, moe_router_topk=1, moe_ffn_hidden_size=8,
    moe_router_pre_softmax=True, add_bias_linear=True, use_cpu_initialization=True)
experts = SequentialMLP(2, config, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
                        pg_collection=ProcessGroupCollection.use_mpu_process_groups())
try:
    experts(torch.randn(4, 4), torch.tensor([2, 2]), torch.ones(4))
except RuntimeError as error:
    print(f"RuntimeError: {error}")
    sys.exit(0)
sys.exit(1)
