"""With `use_cpu_initialization` the ranks of an expert-parallel group begin with the same experts.

The CPU's generator has one seed on all of them, and each draws for its own experts what rank 0 draws for experts 0, 1 …
Exit code 0: the fault is there. Run with an interpreter that has megatron-core.
"""
import sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP


def experts(rank, folder):
    torch.cuda.current_device = lambda: "cpu"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=2, create_gloo_process_groups=False)
    torch.manual_seed(1234 + 100 * parallel_state.get_pipeline_model_parallel_rank())  # training's _set_random_seed
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_ffn_hidden_size=8,
        add_bias_linear=False, expert_model_parallel_size=2, use_cpu_initialization=True)
    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    held = SequentialMLP(2, config, parts, pg_collection=ProcessGroupCollection.use_mpu_process_groups())
    torch.save([weight.detach() for weight in held.parameters()], f"{folder}/{rank}")


with tempfile.TemporaryDirectory() as at:
    torch.multiprocessing.start_processes(experts, (at,), 2, start_method="fork")
    first, second = torch.load(f"{at}/0"), torch.load(f"{at}/1")
equal = sum(torch.equal(one, other) for one, other in zip(first, second))
print(f"{equal} of {len(first)} weights of experts 2 and 3 on rank 1 equal those of experts 0 and 1 on rank 0")
sys.exit(equal == 0)
