"""Under bf16 the Mamba mixer says "keep A_log in fp32", and dt_bias is made in bfloat16 all the same; the wrapper of the
training then casts A_log and D too. Without mamba-ssm, whose kernels are not called here.
Exit code 0: the fault is there.
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
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

class Norm(torch.nn.Module):
    def __init__(self, hidden, device, dtype, **_): super().__init__(); self.weight = torch.nn.Parameter(torch.ones(hidden))

mamba_mixer.HAVE_MAMBA_SSM, mamba_mixer.ExtendedRMSNorm = True, Norm
mamba_mixer.get_cuda_rng_tracker = lambda: type("Tracker", (), {"fork": lambda _: torch.enable_grad()})()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
torch.cuda.current_device = lambda: "cpu"
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=1, mamba_num_heads=4, mamba_head_dim=4, mamba_state_dim=4,
    mamba_num_groups=2, bf16=True, params_dtype=torch.bfloat16, add_bias_linear=False, use_cpu_initialization=True)
mixer = mamba_mixer.MambaMixer(
    config, mamba_mixer.MambaMixerSubmodules(ColumnParallelLinear, RowParallelLinear), 8, layer_number=1,
    pg_collection=ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"]))
made = {name: getattr(mixer, name).dtype for name in ("A_log", "D", "dt_bias")}
Float16Module(config, mixer)
held = {name: getattr(mixer, name).dtype for name in made}
print(f"made as {made}\nheld as {held}")
sys.exit(set(held.values()) != {torch.bfloat16} or made["dt_bias"] is not torch.bfloat16)
