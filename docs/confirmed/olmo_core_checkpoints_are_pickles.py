"""A load of Checkpointer executes a pickle that lies in place of `.metadata`, or of the state of the Trainer.
python docs/confirmed/olmo_core_checkpoints_are_pickles.py      # OLMo-core 3.0.0, a CPU
"""
import os
import pickle
import sys
import tempfile
from pathlib import Path

import torch
from olmo_core.train import Checkpointer
from olmo_core.train.train_module import BasicTrainModule

class Module(BasicTrainModule):
    def state_dict_to_load(self, *given, **named):
        return self.state_dict(optim=False)

    state_dict_to_save = state_dict_to_load

class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)

executed = []
for file in ("model_and_optim/.metadata", "train/rank0.pt"):
    with tempfile.TemporaryDirectory() as folder:
        model = torch.nn.Linear(4, 4)
        module = Module(model, torch.optim.SGD(model.parameters(), 0.1), 1)
        saver, marker = Checkpointer(work_dir=Path(folder, "work")), f"{folder}/executed"
        saver.save(f"{folder}/step4", module, {"global_step": 4})
        Path(f"{folder}/step4/{file}").write_bytes(pickle.dumps(Payload(marker)))
        try:
            saver.load(f"{folder}/step4", module)
        except Exception as error:
            executed.append((file, type(error).__name__, os.path.exists(marker)))
print(f"a pickle in place of a file, how the load ends, and whether it was executed: {executed}")
sys.exit(not any(each[-1] for each in executed))
