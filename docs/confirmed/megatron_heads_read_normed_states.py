"""A head of multi-token prediction reads the hidden state after the norm that stands before the output projection.

The first reads the model's after its final norm, the next that of the head below after its own. By arXiv 2412.19437,
eq. 21-22, it is what the layers return. Run with an interpreter that has megatron-core. Exit code 0: it is so.
"""
import contextlib
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.transformer import TransformerConfig

torch.cuda.current_device = lambda: "cpu"
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, mtp_num_layers=2, normalization="RMSNorm",
    use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0)
layer = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
heads = gpt_layer_specs.get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False)
model = GPTModel(config, layer, vocab_size=16, max_sequence_length=4, mtp_block_spec=heads)
first, second = model.mtp.layers
seen = {}
for name, module in {"final norm": model.decoder.final_layernorm, "head 1": first.final_layernorm}.items():
    module.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.detach()}))
for name, module in {"reads 1": first.hnorm, "reads 2": second.hnorm}.items():
    module.register_forward_hook(lambda _, given, __, name=name: seen.update({name: given[0].detach()}))
tokens = torch.arange(4)[None]
model(tokens, tokens, torch.ones(1, 1, 4, 4).triu(1).bool(), labels=tokens)
torch.distributed.destroy_process_group()
same = [torch.equal(seen["reads 1"], seen["final norm"]), torch.equal(seen["reads 2"], seen["head 1"])]
print(f"head 1 reads the final norm: {same[0]}; head 2 reads the norm of head 1: {same[1]}")
sys.exit(not all(same))
