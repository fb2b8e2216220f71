"""A save of Checkpointer that finds no room leaves what it wrote behind.
python docs/confirmed/olmo_core_full_disk_leaves_files.py      # OLMo-core 3.0.0, a CPU
"""
import resource
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
    model = torch.nn.Linear(64, 64)
    module = Module(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # no file may grow over it, as on a full disk
    try:
        Checkpointer(work_dir=Path(folder, "work")).save(f"{folder}/step4", module, {"global_step": 4})
    except BaseException as error:  # CheckpointException is one
        words = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = [str(each.relative_to(folder)) for each in Path(folder).rglob("step4*/**/*") if each.is_file()]
print(f"{words}, and these files are left: {left}")
sys.exit(not left)
