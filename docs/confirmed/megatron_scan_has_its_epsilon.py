"""The norm after the scan of the Mamba mixer has an epsilon of 1e-5, whatever the configuration says of norms.
Without mamba-ssm, whose kernels are not called here. Exit code 0: the fault is there.
"""
import sys
from unittest.mock import MagicMock

INFERENCE = "megatron.core.inference.contexts.attention_context.triton"  # imported by 0.16.1, and not called here
sys.modules |= dict.fromkeys((INFERENCE, f"{INFERENCE}.tensor_ops"), MagicMock())

import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import mamba_mixer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig

class Norm(torch.nn.Module):
    def __init__(self, hidden, eps, **_): super().__init__(); self.eps, self.weight = eps, torch.nn.Parameter(torch.ones(hidden))

mamba_mixer.HAVE_MAMBA_SSM, mamba_mixer.ExtendedRMSNorm = True, Norm
mamba_mixer.get_cuda_rng_tracker = lambda: type("Tracker", (), {"fork": lambda _: torch.enable_grad()})()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
torch.cuda.current_device = lambda: "cpu"
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=1, mamba_num_heads=4, mamba_head_dim=4, mamba_state_dim=4,
    mamba_num_groups=2, layernorm_epsilon=0.3, add_bias_linear=False, use_cpu_initialization=True)
mixer = mamba_mixer.MambaMixer(
    config, mamba_mixer.MambaMixerSubmodules(ColumnParallelLinear, RowParallelLinear), 8, layer_number=1,
    pg_collection=ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"]))
print(f"layernorm_epsilon is {config.layernorm_epsilon}, that of the mixer's norm {mixer.norm.eps}")
sys.exit(mixer.norm.eps != 1e-5)
