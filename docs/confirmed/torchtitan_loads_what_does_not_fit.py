"""CheckpointManager loads float32 into bfloat16 and the file of another step, and names no damaged file.

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
    for step in (2, 4):
        model = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(model.weight, step / 3)
        manager(folder, model).save(step)
    narrow = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    manager(folder, narrow).load(4)
    shutil.copy(f"{folder}/step-2/__0_0.distcp", f"{folder}/step-4/__0_0.distcp")
    manager(folder, model).load(4)
    open(f"{folder}/step-4/__0_0.distcp", "wb").close()
    try:
        manager(folder, model).load(4)
    except BaseException as error:  # CheckpointException is one
        (words,) = [repr(each) for each, _ in error.failures.values()]
print(f"{narrow.weight[0, 0]} for 4/3; {model.weight[0, 0]} with the file of step 2; an empty file: {words}")
sys.exit(bool(model.weight[0, 0] > 1 or "distcp" in words))
