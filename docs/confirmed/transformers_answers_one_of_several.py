"""Behind a state, NemotronH's scan reads one of several tokens and answers it for all.

Run with an interpreter that has transformers 5.10.4. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import DynamicCache, NemotronHConfig, NemotronHForCausalLM

torch.manual_seed(0)
config = NemotronHConfig(
    vocab_size=32, hidden_size=16, layers_block_type=["mamba", "attention"], mamba_num_heads=4, mamba_head_dim=8,
    n_groups=2, ssm_state_size=8, chunk_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    initializer_range=0.5,
)
mixer = NemotronHForCausalLM(config).eval().model.layers[0].mixer
x = torch.randn(1, 12, 16)
with torch.no_grad():
    mixer.time_step_min = 0.0  # another fault of it
    off = {}
    whole = mixer(x)[:, 8:]
    for size in (1, 4):
        cache = DynamicCache(config=config)
        mixer(x[:, :8], cache_params=cache)
        parts = [mixer(x[:, at : at + size], cache_params=cache) for at in range(8, 12, size)]
        off[size] = float((torch.cat(parts, 1) - whole).abs().max() / whole.abs().max())
for size, distance in off.items():
    print(f"four tokens after eight, {size} at once: off by {distance:.1e} from one pass")
sys.exit(not (off[4] > 1e-2 > 1e-5 > off[1]))
