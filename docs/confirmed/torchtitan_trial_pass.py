"""torch's pipeline runs each stage once to learn shapes; torchtitan's routers count that pass, and biases move by it.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_trial_pass.py      # torchtitan 0.3.0, on a CPU"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3 import qwen3_configs

dist.init_process_group("gloo")
rank = dist.get_rank()
config = qwen3_configs["debugmodel_moe"]("flex")
config.layers = config.layers[:2]
for layer in config.layers:
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
model = config.build()
model.init_states()
del model.layers[str(1 - rank)]
if rank == 0:
    model.norm = model.lm_head = None
else:
    model.tok_embeddings = None
moe = model.layers[str(rank)].moe
loss = lambda logits, labels: torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())  # noqa: E731
schedule = Schedule1F1B(PipelineStage(model, rank, 2, torch.device("cpu")), n_microbatches=4, loss_fn=loss)
tokens, right = torch.arange(64).view(4, 16), 4 * 16 * moe.router.top_k
for step in (1, 2):
    moe.tokens_per_expert_E.zero_()
    schedule.step(*([tokens] if rank == 0 else []), target=tokens if rank else None)
    found = int(moe.tokens_per_expert_E.sum())
    print(f"rank {rank}, step {step}: {found} assignments counted, {right} were made", flush=True)
    assert (found > right) == (step == 1), "not seen"
