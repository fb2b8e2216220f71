"""Under tensor parallel Megatron-Core's own latent attention loses gradients of the key's part with rope: each rank keeps
those of its own heads. github.com/NVIDIA/Megatron-LM/issues/1699. Exit code 0: the fault is there, with megatron-core.
"""
import contextlib, sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer import MLATransformerConfig, multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.spec_utils import build_module


class Core(DotProductAttention):  # with the two arguments that latent attention gives it, and nothing else
    def __init__(self, *given, k_channels=0, v_channels=0, **named): super().__init__(*given, **named)

def gradient(rank, tp, folder):  # one layer, the same weights and input on any number of ranks
    CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()
    torch.cuda.current_device, multi_latent_attention.HAVE_TE = (lambda: "cpu"), False
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{tp}", rank=rank, world_size=tp)
    parallel_state.initialize_model_parallel(tp, create_gloo_process_groups=False)
    config = MLATransformerConfig(
        num_layers=1, hidden_size=16, num_attention_heads=2, kv_channels=8, rope_type="rope", attention_dropout=0.0,
        tensor_model_parallel_size=tp, use_cpu_initialization=True, add_bias_linear=False, init_method_std=0.3,
        q_lora_rank=8, kv_lora_rank=8, qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=8)
    spec = get_gpt_layer_local_spec(multi_latent_attention=True, normalization="RMSNorm").submodules.self_attention
    spec.submodules.core_attention = Core
    torch.manual_seed(7)
    x = torch.randn(5, 2, 16).requires_grad_()
    layer, mask = build_module(spec, config=config, layer_number=1), torch.ones(1, 1, 5, 5, dtype=torch.bool).triu(1)
    layer(x, attention_mask=mask)[0].square().sum().backward()
    torch.save(x.grad, f"{folder}/grad-{tp}")

with tempfile.TemporaryDirectory() as at:
    for n in (1, 2):
        torch.multiprocessing.start_processes(gradient, (n, at), n, start_method="fork")
    one, two = torch.load(f"{at}/grad-1"), torch.load(f"{at}/grad-2")
print(f"the gradient of the input on two ranks is off by {(apart := float((two - one).norm() / one.norm())):.2e}")
sys.exit(apart < 1e-4)
