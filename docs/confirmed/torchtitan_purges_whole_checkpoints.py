"""CheckpointManager counts checkpoints whose writers died among the newest that it keeps, and purges whole ones.

Run with an interpreter that has torchtitan 0.3.0, on a CPU. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ConstantLR
import torchtitan.tools.utils as utils

utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.components.checkpointer import CheckpointManager


def manager(folder, model, keep=0):
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    config = CheckpointManager.Config(enable=True, folder=folder, interval=1, keep_latest_k=keep)
    held = {"optimizers": sgd, "lr_schedulers": ConstantLR(sgd), "dataloader": None, "states": {}}
    return CheckpointManager(config, model_parts=[model], sd_adapter=None, **held)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with tempfile.TemporaryDirectory() as folder:
    for step in (2, 4):
        manager(folder, torch.nn.Linear(4, 4)).save(step)
    for step in (6, 8):  # their writers died
        os.mkdir(f"{folder}/step-{step}")
    purging = manager(folder, torch.nn.Linear(4, 4), keep=2)
    purging._purge_stale_checkpoints()  # what it calls behind each save
    purging.close()
    found, left = purging._find_load_step(), sorted(os.listdir(folder))
print(f"keep_latest_k=2 leaves {left}; the step to load is {found}")
sys.exit(found != -1)
