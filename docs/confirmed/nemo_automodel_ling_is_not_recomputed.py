"""A layer of Ling (BailingMoeV2) whose MLP is wrapped for activation checkpointing raises AssertionError in its forward
pass: it looks for the classes MLP and MoE, and finds the wrapper. Qwen3-MoE's layer unwraps it first.
python docs/confirmed/nemo_automodel_ling_is_not_recomputed.py      # NeMo AutoModel 0.7.0, a CPU
"""
import sys

import torch
from nemo_automodel.components.distributed.parallelizer import apply_submodule_checkpointing
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.ling_v2.config import BailingMoeV2Config
from nemo_automodel.components.models.ling_v2.model import BailingMoeV2ForCausalLM

config = BailingMoeV2Config(
    vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, head_dim=4,
    num_key_value_heads=1, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, n_group=0, topk_group=0,
    pad_token_id=None, eos_token_id=None, dtype="float32",
)
backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch")
model = BailingMoeV2ForCausalLM(config, backend=backend)
model.initialize_weights(torch.device("cpu"), torch.float32)
tokens = torch.arange(8)[None]
print(f"its logits have the shape {tuple(model(tokens).logits.shape)}")
apply_submodule_checkpointing(list(model.model.layers.values()), False)
try:
    words = str(tuple(model(tokens).logits.shape))
except AssertionError as error:
    words = f"AssertionError {error}"
print(f"with activation checkpointing: {words}")
sys.exit("AssertionError" not in words)
