"""Checkpointer loads float32 into bfloat16 and the file of another step, and names no damaged file.
python docs/confirmed/olmo_core_loads_what_does_not_fit.py      # OLMo-core 3.0.0, a CPU
"""
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from olmo_core.train import Checkpointer
from olmo_core.train.train_module import BasicTrainModule

class Module(BasicTrainModule):
    def __init__(self, value, dtype=torch.float32):
        model = torch.nn.Linear(4, 4, dtype=dtype)
        torch.nn.init.constant_(model.weight, value)
        super().__init__(model, torch.optim.SGD(model.parameters(), 0.1), 1)

    def state_dict_to_load(self, *given, **named):
        return self.state_dict(optim=False)

    state_dict_to_save = state_dict_to_load

with tempfile.TemporaryDirectory() as folder:
    saver = Checkpointer(work_dir=Path(folder, "work"))
    for step in (2, 4):
        saver.save(f"{folder}/step{step}", Module(step / 3), {"global_step": step})
    narrow, mixed = Module(0.0, torch.bfloat16), Module(0.0)
    saver.load(f"{folder}/step4", narrow)
    files = [f"{folder}/step{step}/model_and_optim/__0_0.distcp" for step in (2, 4)]
    shutil.copy(*files)
    saver.load(f"{folder}/step4", mixed)
    Path(f"{folder}/step4/model_and_optim/.metadata").write_bytes(b"")
    try:
        saver.load(f"{folder}/step4", Module(0.0))
    except EOFError as error:
        words = repr(error)
print(f"{narrow.model.weight[0, 0]} for 4/3; {mixed.model.weight[0, 0]} with the file of step 2; emptied: {words}")
sys.exit(bool(mixed.model.weight[0, 0] > 1 or "metadata" in words))
