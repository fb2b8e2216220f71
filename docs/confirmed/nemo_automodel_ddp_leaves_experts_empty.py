"""`from_config` under DDP never calls `initialize_weights`: experts are what torch.empty found in memory, NaN among it, and
other weights are not drawn as under FSDP2.
python docs/confirmed/nemo_automodel_ddp_leaves_experts_empty.py      # NeMo AutoModel 0.7.0, a CPU
"""

import sys
from unittest.mock import patch

import torch
import torch.distributed as dist
from nemo_automodel import NeMoAutoModelForCausalLM
from nemo_automodel._transformers import auto_model
from nemo_automodel.components.models.ling_v2.config import BailingMoeV2Config
from nemo_automodel.components.models.ling_v2.model import BailingMoeV2ForCausalLM
from nemo_automodel.recipes._dist_utils import create_distributed_setup_from_config

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
INITIALIZE, APPLY, called = BailingMoeV2ForCausalLM.initialize_weights, auto_model.apply_model_infrastructure, []
HERE, found = torch.device("cpu"), {}
initialize = lambda self, device=None, dtype=torch.float32: called.append(INITIALIZE(self, HERE, dtype))
apply = lambda model, **named: APPLY(model, **{**named, "device": HERE})
for strategy in ("fsdp2", "ddp"):
    called.clear()
    config = BailingMoeV2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
        num_key_value_heads=2, first_k_dense_replace=0, num_experts=8, num_experts_per_tok=2, n_group=0, topk_group=0,
        moe_intermediate_size=8, num_shared_experts=0, pad_token_id=None, dtype="float32",
        eos_token_id=None, architectures=["BailingMoeV2ForCausalLM"],
    )  # fmt: skip
    setup = create_distributed_setup_from_config({"distributed": {"strategy": strategy}}, world_size=1)
    backend = {"attn": "sdpa", **dict.fromkeys(("linear", "rms_norm", "experts", "dispatcher"), "torch")}
    with (
        patch("torch.cuda.current_device", lambda: 0),
        patch.object(BailingMoeV2ForCausalLM, "initialize_weights", initialize),
        patch.object(auto_model, "apply_model_infrastructure", apply),
    ):
        NeMoAutoModelForCausalLM.from_config(config, backend=backend, distributed_setup=setup)
    found[strategy] = len(called)
print(f"initialize_weights was called so often: {found}")
sys.exit(found != {"fsdp2": 1, "ddp": 0})
