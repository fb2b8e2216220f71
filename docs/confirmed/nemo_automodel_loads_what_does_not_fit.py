"""A load casts float32 into bfloat16, passes over a tensor that the model lacks, and takes the file of another step.
python docs/confirmed/nemo_automodel_loads_what_does_not_fit.py      # NeMo AutoModel 0.7.0, a CPU
"""
import contextlib
import io
import logging
import shutil
import sys
import tempfile

import torch
from nemo_automodel.components.checkpoint.config import CheckpointingConfig
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.recipes.base_recipe import BaseRecipe

logging.disable(logging.ERROR)

class Recipe(BaseRecipe):
    def __init__(self, folder, value, dtype=torch.float32, bias=True):
        self.cfg, self.peft_config, self.device_mesh = ConfigNode({}), None, None
        self.checkpointer = CheckpointingConfig(checkpoint_dir=folder, save_consolidated=False).build(0, 0, 0)
        self.model = torch.nn.Linear(4, 4, bias=bias, dtype=dtype)
        torch.nn.init.constant_(self.model.weight, value)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def first(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.load_checkpoint("epoch_0_step_4")
        return float(self.model.weight[0, 0])

with tempfile.TemporaryDirectory() as folder:
    for step in (2, 4):
        Recipe(folder, step / 3).save_checkpoint(0, step, 1.0)
    narrow, fewer = Recipe(folder, 0.0, torch.bfloat16).first(), Recipe(folder, 0.0, bias=False).first()
    files = [f"{folder}/epoch_0_step_{n}/model/shard-00001-model-00001-of-00001.safetensors" for n in (2, 4)]
    shutil.copy(*files)
    mixed = Recipe(folder, 0.0).first()
print(f"{narrow} for 4/3 in bfloat16; {fewer:.4f} without the bias that was saved; {mixed:.4f} with the file of step 2")
sys.exit(not (narrow != 4 / 3 and fewer > 1 > mixed))
