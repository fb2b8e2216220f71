"""The loss of prediction heads is a mean over microbatches of means over their own labels: another cut is another loss.

Two rows, of which the second has a label for the model and none for the head. In two microbatches the loss of the head
is reported as half (up to 0.16 as NaN), and from 0.17 on its gradient is 8/9 (issue 7452). Exit code 0: the fault is there.
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
    hidden_dropout=0.0, attention_dropout=0.0, calculate_per_token_loss=True)
layer = gpt_layer_specs.get_gpt_layer_local_spec()
heads = gpt_layer_specs.get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False)
model = GPTModel(config, layer, vocab_size=16, max_sequence_length=8, mtp_block_spec=heads)
tokens, mask, counts = torch.arange(16).reshape(2, 8), torch.ones(1, 1, 8, 8).triu(1).bool(), torch.ones(2, 8)
counts[1, 1:] = 0
norms, told = [], []
for cuts in (1, 2):
    model.zero_grad(), MTPLossLoggingHelper.tracker.clear()
    for rows, kept in zip(tokens.chunk(cuts), counts.chunk(cuts)):
        losses = model(rows, torch.arange(8).expand(rows.shape), mask, labels=rows.roll(-1, 1), loss_mask=kept)
        (losses * kept).sum().backward()  # all are divided by the labels of the step, here 9
    norms.append(float(model.mtp.layers[0].eh_proj.weight.grad.norm()))
    told.append(float(next(iter(MTPLossLoggingHelper.tracker.values()))[0] / cuts))
head, loss = norms[1] / norms[0], told[1] / told[0]
print(f"in two microbatches the gradient of the head is {head:.4f} of that in one, its loss {loss:.4f}")
sys.exit(0.9 < loss < 1.1)
