"""Experts in torch raise IndexError for a batch without tokens, where an MLP returns one without tokens.
python docs/confirmed/nemo_automodel_experts_without_tokens.py      # NeMo AutoModel 0.7.0, a CPU
"""
import sys

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import MLP, MoE

backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch")
moe = MoE(MoEConfig(
    n_routed_experts=4, n_shared_experts=0, n_activated_experts=2, n_expert_groups=0, n_limited_groups=0, dim=8,
    train_gate=True, gate_bias_update_factor=0.0, aux_loss_coeff=0.0, score_func="sigmoid", route_scale=1.0,
    inter_dim=8, moe_inter_dim=8, norm_topk_prob=True, dtype=torch.float32,
), backend)
with torch.no_grad():
    moe.init_weights(torch.device("cpu"))
none = torch.empty(2, 0, 8)
print(f"an MLP returns {tuple(MLP(8, 8, 'torch', dtype=torch.float32)(none).shape)}")
try:
    words = f"return {tuple(moe(none).shape)}"
except IndexError as error:
    words = f"raise IndexError: {error}"
print(f"the experts {words}")
sys.exit("IndexError" not in words)
