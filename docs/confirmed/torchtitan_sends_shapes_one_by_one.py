"""The first step of a pipeline sends shapes by single messages, outside of any batch: NCCL opens connections for them.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_sends_shapes_one_by_one.py  # 0.3.0, on a CPU"""
# ruff: noqa: E402, I001
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.distributed import pipeline_parallel

dist.init_process_group("gloo")
rank = dist.get_rank()
print("its stages are torch's:", pipeline_parallel.PipelineStage is PipelineStage)
alone, send = [], dist.send
dist.distributed_c10d.send = dist.send = lambda tensor, *given, **named: (
    alone.append(tuple(tensor.shape)), send(tensor, *given, **named))[1]
stage = PipelineStage(torch.nn.Linear(8, 8), rank, 2, torch.device("cpu"))
schedule = torch.distributed.pipelining.Schedule1F1B(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
for step in (1, 2):
    alone.clear()
    schedule.step(*([torch.ones(4, 8)] if rank == 0 else []), target=torch.ones(4, 8) if rank else None)
    print(f"rank {rank}, step {step}: {len(alone)} messages were sent by themselves: {alone}", flush=True)
    assert bool(alone) == (step == 1), "not seen"
