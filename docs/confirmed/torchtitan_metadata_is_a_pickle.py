"""CheckpointManager executes a pickle that lies in place of `.metadata`.

Run with an interpreter that has torchtitan 0.3.0, on a CPU. Exit code 0: the fault is there.
"""
# ruff: noqa: E402, I001
import os
import pickle
import sys
import tempfile
from pathlib import Path

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


class Payload:
    def __reduce__(self):
        return os.mkdir, (marker,)


with tempfile.TemporaryDirectory() as folder:
    marker = f"{folder}/executed"
    manager(folder, torch.nn.Linear(4, 4)).save(4)
    Path(f"{folder}/step-4/.metadata").write_bytes(pickle.dumps(Payload()))
    try:
        manager(folder, torch.nn.Linear(4, 4)).load(4)
    except BaseException as error:  # CheckpointException is one
        print(f"the load fails with {type(error).__name__}; executed: {os.path.exists(marker)}")
    sys.exit(not os.path.exists(marker))
