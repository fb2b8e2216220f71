"""With TP 2, EP 1 and ETP 1 both ranks hold the same experts, and Megatron-Core 0.16.1 does not add up their gradients.

github.com/NVIDIA/Megatron-LM/pull/5916. Exit code 0: the fault is there. Run with an interpreter that has megatron-core.
"""
import sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.process_groups_config import ProcessGroupCollection


def gradients(rank, folder):
    torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(2, expert_tensor_parallel_size=1, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=2, moe_ffn_hidden_size=8,
        add_bias_linear=False, tensor_model_parallel_size=2, expert_tensor_parallel_size=1, sequence_parallel=True,
        use_cpu_initialization=True)
    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    experts = SequentialMLP(2, config, parts, pg_collection=groups)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), experts)
    for weight in experts.parameters():
        weight.main_grad.fill_(rank + 1.0)  # what the tokens of this rank give
    wrapped.finish_grad_sync()
    torch.save([float(weight.main_grad.mean()) for weight in experts.parameters()], f"{folder}/{rank}")


with tempfile.TemporaryDirectory() as at:
    torch.multiprocessing.start_processes(gradients, (at,), 2, start_method="fork")
    one, two = torch.load(f"{at}/0"), torch.load(f"{at}/1")
print(f"gradients 1 and 2 of the same experts are {one} on rank 0 and {two} on rank 1 after the reduction")
sys.exit(one == two)
