"""A load of torchtitan's checkpoint manager waits for no save in the background: it takes what is complete, or nothing.

Run with an interpreter that has torchtitan 0.3.0. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import sys
import tempfile
import time
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter

kernels = sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
import torchtitan.tools.utils as utils
utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.components.checkpointer import CheckpointManager

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
write = FileSystemWriter.write_data
FileSystemWriter.write_data = lambda *given: (time.sleep(0.5), write(*given))[1]  # type: ignore[method-assign]
Part = type("Part", (dict,), {"state_dict": dict.copy, "load_state_dict": dict.update})
with tempfile.TemporaryDirectory() as folder:
    trained = Part(step=0)
    config = CheckpointManager.Config(enable=True, folder=folder, interval=1, keep_latest_k=0, async_mode="async")
    manager = CheckpointManager(
        config, dataloader=Part(), model_parts=[torch.nn.Linear(2, 2)], optimizers=Part(), lr_schedulers=Part(),
        states={"train_state": trained}, sd_adapter=None,
    )  # fmt: skip
    seen = []
    for step in (1, 2):
        trained["step"] = step
        manager.save(step)
        seen.append(trained["step"] if manager.load(-1) else None)
        print(f"right after the save of step {step} it loads step {seen[-1]}")
    manager.maybe_wait_for_saving()
dist.destroy_process_group()
sys.exit(seen != [None, 1])
