"""Checkpointer takes a step whose tensors were cut off, and a copy of step 4 that is named step7, for the latest.
python docs/confirmed/olmo_core_finds_what_is_no_checkpoint.py      # OLMo-core 3.0.0, a CPU
"""
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from olmo_core.train import Checkpointer
from olmo_core.train.train_module import BasicTrainModule

class Module(BasicTrainModule):
    def state_dict_to_save(self):
        return self.state_dict(optim=False)

with tempfile.TemporaryDirectory() as folder:
    model = torch.nn.Linear(4, 4)
    saver = Checkpointer(work_dir=Path(folder, "work"))
    for step in (2, 4, 6):
        module = Module(model, torch.optim.SGD(model.parameters(), 0.1), 1)
        saver.save(f"{folder}/step{step}", module, {"global_step": step})
    Path(f"{folder}/step6/model_and_optim/__0_0.distcp").write_bytes(b"")
    cut = Path(saver.latest_checkpoint(folder)).name
    shutil.copytree(f"{folder}/step4", f"{folder}/step7")
    named = Path(saver.latest_checkpoint(folder)).name
print(f"of 2, 4 and an empty 6 the latest is {cut}; beside a copy of step4 that is named step7 it is {named}")
sys.exit((cut, named) != ("step6", "step7"))
