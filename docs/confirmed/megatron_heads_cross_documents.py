"""If only the attention mask tells documents apart, a head of multi-token prediction learns the next document.

Two documents of four tokens; the only label that counts belongs to the first token of the second. One position earlier
the head of the first document predicts it. Run with an interpreter that has megatron-core. Exit code 0: the fault is
there.
"""
import contextlib
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

torch.cuda.current_device = lambda: "cpu"
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, mtp_num_layers=1, use_cpu_initialization=True,
    hidden_dropout=0.0, attention_dropout=0.0)
layer = gpt_layer_specs.get_gpt_layer_local_spec()
heads = gpt_layer_specs.get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False)
model = GPTModel(config, layer, vocab_size=16, max_sequence_length=8, mtp_block_spec=heads)
documents, counts = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.zeros(1, 8)
counts[0, 4] = 1
hidden = torch.ones(8, 8).triu(1).bool() | (documents[:, None] != documents)
tokens, positions = torch.arange(8)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
model(tokens, positions, hidden[None, None], labels=tokens.roll(-1), loss_mask=counts)
torch.distributed.destroy_process_group()
loss = float(next(iter(MTPLossLoggingHelper.tracker.values()))[0])
print(f"no document has a label two tokens on, and the loss of the head is {loss:.3f}")
sys.exit(not loss > 0)
