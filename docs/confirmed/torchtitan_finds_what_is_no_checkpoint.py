"""CheckpointManager takes `old-step-8`, and a step whose tensors were cut off, for the latest checkpoint.

Run with an interpreter that has torchtitan 0.3.0, on a CPU. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import shutil
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
    finding = manager(folder, torch.nn.Linear(4, 4))
    for step in (2, 4, 6):
        finding.save(step)
    open(f"{folder}/step-6/__0_0.distcp", "wb").close()
    cut = finding._find_load_step()
    shutil.copytree(f"{folder}/step-4", f"{folder}/old-step-8")
    named = finding._find_load_step()
print(f"of 2, 4 and an empty 6 it loads {cut}; beside old-step-8 it loads {named}")
sys.exit((cut, named) != (6, 8))
