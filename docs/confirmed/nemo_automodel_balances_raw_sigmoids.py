"""The balance loss of a sigmoid router is over scores that are normalised for two experts a token, and not for one: with
every expert as busy as the others it is 1 for two, and 2.5 for one.
python docs/confirmed/nemo_automodel_balances_raw_sigmoids.py      # NeMo AutoModel 0.7.0, a CPU
"""
import sys

import torch
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import Gate

losses = {}
for k, tokens in ((1, torch.eye(4)), (2, torch.eye(4) + torch.eye(4).roll(1, 0))):
    gate = Gate(MoEConfig(
        n_routed_experts=4, n_shared_experts=0, n_activated_experts=k, n_expert_groups=0, n_limited_groups=0, dim=4,
        train_gate=True, gate_bias_update_factor=0.0, aux_loss_coeff=1.0, score_func="sigmoid", route_scale=1.0,
        inter_dim=8, moe_inter_dim=8, norm_topk_prob=True, dtype=torch.float32,
    ))
    torch.nn.init.eye_(gate.weight)
    losses[k] = float(gate(8 * tokens, torch.ones(4, dtype=torch.bool), None)[2])
    print(f"{k} of 4 experts a token, all as busy as the others: the balance loss is {losses[k]:.4f}")
sys.exit(not (losses[1] > 2 and abs(losses[2] - 1) < 1e-3))
