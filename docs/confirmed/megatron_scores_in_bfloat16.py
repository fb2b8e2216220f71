"""Megatron-Core's own attention stores scores in bfloat16 before its softmax in float32 (--attention-softmax-in-fp32).

One query, two keys: the scores are 200 and 200.5, and bfloat16 counts in ones there. The value of the second key is 1,
of the first 0, so that the output is the second's weight: e^0.5 / (1 + e^0.5) = 0.622.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import contextlib
import sys
import warnings

import torch
import torch.distributed as dist

warnings.simplefilter("ignore")
from megatron.core import parallel_state, tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

torch.cuda.current_device = lambda: "cpu"
tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *given: contextlib.nullcontext()  # dropout is 0
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=1, hidden_size=4, num_attention_heads=1, attention_dropout=0.0, bf16=True,
    params_dtype=torch.bfloat16, attention_softmax_in_fp32=True, apply_query_key_layer_scaling=False)  # fmt: skip
groups = ProcessGroupCollection.use_mpu_process_groups()
attention = DotProductAttention(config, 1, AttnMaskType.no_mask, "self", pg_collection=groups)
query = torch.tensor([[20.0, 1, 0, 0]] * 2, dtype=torch.bfloat16).view(2, 1, 1, 4)  # tokens, batch, heads, head_dim
keys = torch.tensor([[20.0, 0, 0, 0], [20.0, 1, 0, 0]], dtype=torch.bfloat16).view(2, 1, 1, 4)  # times 1 / sqrt(4)
values = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.bfloat16).view(2, 1, 1, 4)
weight = attention(query, keys, values, None)[0, 0, 0].item()
print(f"the second key weighs {weight:.3f}, expected 0.622")
dist.destroy_process_group()
sys.exit(abs(weight - 0.622) < 0.01)
