"""NemotronH's scan never takes a step below time_step_min, an initialisation bound; its decoding does.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

torch.manual_seed(0)
config = NemotronHConfig(
    vocab_size=32, hidden_size=16, layers_block_type=["linear_attention", "full_attention"], mamba_num_heads=4,
    mamba_head_dim=8, n_groups=2, ssm_state_size=8, chunk_size=4, num_attention_heads=2, num_key_value_heads=1,
    head_dim=8, time_step_limit=(0.0, float("inf")), initializer_range=0.5,
)
model = NemotronHForCausalLM(config).eval()
mixer = model.model.layers[0].mixer
with torch.no_grad():
    mixer.dt_bias.fill_(-8.0)  # softplus(-8) = 0.0003, a step that a trained model may take
    mixer.D.zero_()  # what the scan alone gives
tokens = torch.randint(32, (1, 12))
off = {}
with torch.no_grad():
    for least in (mixer.time_step_limit[0], 0.0):
        mixer.time_step_limit = (least, float("inf"))
        whole = model(tokens).logits
        cache = model(tokens[:, :1], use_cache=True).past_key_values
        steps = [model(tokens[:, at : at + 1], past_key_values=cache, use_cache=True).logits for at in range(1, 12)]
        off[least] = float((whole[:, 1:] - torch.cat(steps, 1)).abs().max() / whole.abs().max())
for least, distance in off.items():
    print(f"steps of at least {least}: one pass and token by token differ by {distance:.1e}")
print(f"config.time_step_limit is {config.time_step_limit}")
sys.exit(not (off[0.001] > 1e-4 > 1e-5 > off[0.0]))
