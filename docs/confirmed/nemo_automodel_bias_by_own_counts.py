"""Without expert parallelism the selection bias of a router is moved by each rank's own counts under FSDP2, so ranks route
by different biases; under DDP it is never moved, since the recipe looks for `update_moe_gate_bias` on the wrapper.
torchrun --standalone --nproc-per-node 2 docs/confirmed/nemo_automodel_bias_by_own_counts.py  # NeMo AutoModel 0.7.0, a CPU
"""

import sys

import torch
import torch.distributed as dist
from nemo_automodel._transformers.infrastructure import apply_model_infrastructure, instantiate_infrastructure
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.ling_v2.config import BailingMoeV2Config
from nemo_automodel.components.models.ling_v2.model import BailingMoeV2ForCausalLM
from torch.distributed.fsdp import MixedPrecisionPolicy

dist.init_process_group("gloo")
backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)  # fmt: skip
config = BailingMoeV2Config(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
    num_key_value_heads=2, first_k_dense_replace=0, num_experts=8, num_experts_per_tok=2, n_group=0, topk_group=0,
    moe_intermediate_size=8, num_shared_experts=0, pad_token_id=None, dtype="float32",
)  # fmt: skip
model = BailingMoeV2ForCausalLM(config, backend=backend, moe_overrides={"gate_bias_update_factor": 1e-3})
torch.manual_seed(1)
model.initialize_weights(torch.device("cpu"), torch.float32)
updates = hasattr(torch.nn.parallel.DistributedDataParallel(model), "update_moe_gate_bias")
policy = FSDP2Config(mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
mesh = MeshContext.build(policy, ParallelismSizes(), world_size=2)
wrapper, _, cut, _ = instantiate_infrastructure(distributed_config=policy, mesh=mesh)
told = {"mesh": mesh, "model_wrapper": wrapper, "parallelize_fn": cut, "device": torch.device("cpu")}
model = apply_model_infrastructure(model, is_meta_device=False, **told)
model(torch.arange(16)[None] + 16 * dist.get_rank())  # other tokens on the other rank
model.update_moe_gate_bias()
found = [None, None]
dist.all_gather_object(found, model.model.layers["0"].mlp.gate.e_score_correction_bias.tolist())
print(f"FSDP2: the ranks have {found}; DDP has update_moe_gate_bias: {updates}")
sys.exit(found[0] == found[1] or updates)
