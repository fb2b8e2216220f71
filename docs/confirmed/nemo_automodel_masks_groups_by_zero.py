"""A sigmoid router with groups sets the scores of the groups that were not chosen to 0. Where every biased score is
below 0, as with a selection bias of -2 on every expert, 0 wins: tokens go to experts of groups that were not chosen.
python docs/confirmed/nemo_automodel_masks_groups_by_zero.py      # NeMo AutoModel 0.7.0, a CPU
"""
import sys

import torch
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import Gate

gate = Gate(MoEConfig(
    n_routed_experts=8, n_shared_experts=0, n_activated_experts=2, n_expert_groups=4, n_limited_groups=1, dim=8,
    train_gate=True, gate_bias_update_factor=1e-3, aux_loss_coeff=0.0, score_func="sigmoid", route_scale=1.0,
    inter_dim=8, moe_inter_dim=8, norm_topk_prob=True, dtype=torch.float32,
))
torch.nn.init.eye_(gate.weight)
x = torch.arange(8.0)[None]  # the last group, experts 6 and 7, has the largest scores
chosen = {}
for bias in (0.0, -2.0):
    gate.e_score_correction_bias.fill_(bias)
    chosen[bias] = sorted(gate(x, torch.ones(1, dtype=torch.bool), None)[1][0].tolist())
    print(f"with {bias:g} on every selection bias the token goes to experts {chosen[bias]}")
sys.exit(not (chosen[0.0] == [6, 7] and chosen[-2.0] != [6, 7]))
