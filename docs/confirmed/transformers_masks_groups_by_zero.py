"""DeepSeek-V3's router sets scores of other groups to 0, which is more than a score that its bias makes negative.

Experts are then chosen from groups that were not. Run with transformers 4.57.6. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

config = DeepseekV3Config(hidden_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1)
router = DeepseekV3TopkRouter(config)
scores_TE = torch.tensor([[0.9, 0.8, 0.2, 0.1]])
chosen = [sorted(router.get_topk_indices(scores_TE + 0).flatten().tolist())]
router.e_score_correction_bias -= 2  # the same for all: no order changes
chosen.append(sorted(router.get_topk_indices(scores_TE).flatten().tolist()))
print(f"experts {chosen[0]} of group 0; with a bias of -2 on each expert {chosen[1]}")
sys.exit(not (chosen == [[0, 1], [2, 3]]))
