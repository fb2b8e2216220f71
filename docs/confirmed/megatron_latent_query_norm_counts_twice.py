"""With --qk-layernorm, tensor parallel without sequence parallel multiplies the gradient of latent attention's query norm
by its ranks: every rank has the whole of it, and `finalize_model_grads` adds it up by its name, q_layernorm, as if each
had that of its own heads. Exit code 0: the fault is there, with megatron-core.
"""
import contextlib, sys, tempfile, types
import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads as finalize
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
        tensor_model_parallel_size=tp, use_cpu_initialization=True, add_bias_linear=False, qk_layernorm=True,
        q_lora_rank=8, kv_lora_rank=8, qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=8)
    spec = get_gpt_layer_local_spec(multi_latent_attention=True, qk_layernorm=True).submodules.self_attention
    spec.submodules.core_attention = Core
    torch.manual_seed(7)
    layer = build_module(spec, config=config, layer_number=1)
    layer(torch.randn(5, 2, 16), attention_mask=torch.zeros(1, 1, 5, 5, dtype=torch.bool))[0].square().sum().backward()
    layer.ddp_config = types.SimpleNamespace(use_megatron_fsdp=False)
    finalize([layer], config, parallel_state.get_tensor_model_parallel_group())
    torch.save(layer.q_layernorm.weight.grad, f"{folder}/grad-{tp}")

with tempfile.TemporaryDirectory() as at:
    for n in (1, 2):
        torch.multiprocessing.start_processes(gradient, (n, at), n, start_method="fork")
    one, two = torch.load(f"{at}/grad-1"), torch.load(f"{at}/grad-2")
print(f"on two ranks the gradient of the query norm is {float(two.norm() / one.norm()):.3f} times that on one")
sys.exit(bool(torch.allclose(one, two, rtol=1e-3)))
