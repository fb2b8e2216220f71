"""A save of CheckpointManager that finds no room leaves what it wrote behind.

Run with an interpreter that has torchtitan 0.3.0, on a CPU. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import os
import resource
import sys
import tempfile

import torch
from torch.optim.lr_scheduler import ConstantLR
import torchtitan.tools.utils as utils

utils.device_type, utils.device_module = "cpu", torch.cpu
from torchtitan.components.checkpointer import CheckpointManager


def manager(folder, model, keep=0):
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    config = CheckpointManager.Config(enable=True, folder=folder, interval=1, keep_latest_k=keep)
    held = {"optimizers": sgd, "lr_schedulers": ConstantLR(sgd), "dataloader": None, "states": {}}
    return CheckpointManager(config, model_parts=[model], sd_adapter=None, **held)


with tempfile.TemporaryDirectory() as folder:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    try:
        manager(folder, torch.nn.Linear(4, 4)).save(4)
    except BaseException as error:  # CheckpointException is one
        words = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = os.listdir(f"{folder}/step-4")
print(f"{words}, and step-4 has {left}")
sys.exit(not left)
