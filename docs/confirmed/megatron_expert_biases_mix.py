"""With TP 2, EP 2 and ETP 1 Megatron-Core adds up the gradients of the output biases of different experts: they are
marked as sequence parallel. Exit code 0: the fault is there. Run with an interpreter that has megatron-core.
"""
import sys, tempfile
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads as across_tp
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.process_groups_config import ProcessGroupCollection


def gradients(rank, folder):
    torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(
        2, expert_model_parallel_size=2, expert_tensor_parallel_size=1, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=2, moe_ffn_hidden_size=8,
        tensor_model_parallel_size=2, expert_model_parallel_size=2, expert_tensor_parallel_size=1,
        sequence_parallel=True, use_cpu_initialization=True)  # add_bias_linear is on by default
    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    experts = SequentialMLP(1, config, parts, pg_collection=groups)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), experts)
    for weight in experts.parameters():
        weight.main_grad.fill_(rank + 1.0)  # what the tokens of this rank's expert give
    across_tp([wrapped], config, groups.tp)
    torch.save(float(experts.local_experts[0].linear_fc2.bias.main_grad.mean()), f"{folder}/{rank}")


with tempfile.TemporaryDirectory() as at:
    torch.multiprocessing.start_processes(gradients, (at,), 2, start_method="fork")
    found = [torch.load(f"{at}/{rank}") for rank in range(2)]
print(f"the gradients 1 and 2 of the output biases of experts 0 and 1 are {found}")
sys.exit(found == [1.0, 2.0])
