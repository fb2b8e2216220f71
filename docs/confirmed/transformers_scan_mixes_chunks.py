"""NemotronH's scan without kernels hands a chunk's state to no later chunk: later tokens change earlier outputs.

It sums decay times state over the chunks that get a state, in place of those that give one.
Run with an interpreter that has transformers 5.10.4. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

torch.manual_seed(0)
config = NemotronHConfig(
    vocab_size=32, hidden_size=16, layers_block_type=["mamba", "attention"], mamba_num_heads=4, mamba_head_dim=8,
    n_groups=2, ssm_state_size=8, chunk_size=4, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    initializer_range=0.5,
)
mixer = NemotronHForCausalLM(config).eval().model.layers[0].mixer
x = torch.randn(1, 16, 16)
other = x.clone()
other[:, 12:] = torch.randn(1, 4, 16)  # the last of four chunks
with torch.no_grad():
    mixer.time_step_min = 0.0  # another fault of it
    whole, changed = mixer(x), mixer(other)
    mixer.chunk_size = 16
    one = mixer(x)
early = float((whole - changed)[:, :12].abs().max() / whole.abs().max())
chunks = float((whole - one).abs().max() / one.abs().max())
print(f"other tokens from 12 on change what stands before them by {early:.1e}")
print(f"chunks of 4 and one of 16 differ by {chunks:.1e}")
sys.exit(not (early > 1e-4 and chunks > 1e-4))
