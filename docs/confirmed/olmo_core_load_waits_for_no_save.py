"""A load right after an asynchronous save has started loads the checkpoint before it.
python docs/confirmed/olmo_core_load_waits_for_no_save.py      # OLMo-core 3.0.0, a CPU
"""
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from olmo_core.distributed.checkpoint.filesystem import RemoteFileSystemWriter
from olmo_core.train import Checkpointer
from olmo_core.train.train_module import BasicTrainModule

class Module(BasicTrainModule):
    def state_dict_to_save(self):
        return self.state_dict(optim=False)

write = RemoteFileSystemWriter.write_data

def slowly(*given, **named):  # a disk that takes a while
    time.sleep(0.5)
    return write(*given, **named)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with tempfile.TemporaryDirectory() as folder, patch.object(RemoteFileSystemWriter, "write_data", slowly):
    model = torch.nn.Linear(4, 4)
    module = Module(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    saver = Checkpointer(work_dir=Path(folder, "work"), process_group=dist.new_group())
    saver.save(f"{folder}/step1", module, {"global_step": 1})
    saving = saver.save_async(f"{folder}/step2", module, {"global_step": 2})
    found = Path(saver.latest_checkpoint(folder)).name  # what Trainer.load_checkpoint takes of a folder
    saving.result()
print(f"while step2 is being saved, a load takes {found}")
sys.exit(found != "step1")
