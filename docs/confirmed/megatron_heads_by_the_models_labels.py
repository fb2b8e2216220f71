"""With calculate_per_token_loss the loss of prediction heads is divided by the labels of the model, which are more.

Four tokens, four labels: the head has three. It learns 3/4 of what it learns where its own labels divide, and where it
has no label its loss is reported as NaN. Exit code 0: the fault is there, up to 0.16.
"""
import contextlib
import math
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
model = GPTModel(config, layer, vocab_size=16, max_sequence_length=4, mtp_block_spec=heads)
tokens, mask, norms = torch.arange(4)[None], torch.ones(1, 1, 4, 4).triu(1).bool(), []
for config.calculate_per_token_loss, divisor in ((False, 1), (True, 4)):
    model.zero_grad()
    losses = model(tokens, tokens, mask, labels=tokens + 1, loss_mask=torch.ones(1, 4))
    losses.sum().backward()
    norms.append(float(model.mtp.layers[0].eh_proj.weight.grad.norm()) / divisor)
MTPLossLoggingHelper.tracker.clear()
model(tokens, tokens, mask, labels=tokens + 1, loss_mask=torch.eye(4)[:1])
told = float(next(iter(MTPLossLoggingHelper.tracker.values()))[0])
print(f"the head learns {norms[1] / norms[0]:.3f} of what its own labels give; its loss without a label is {told}")
sys.exit(not (norms[1] < 0.8 * norms[0] and math.isnan(told)))
