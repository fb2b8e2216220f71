"""The latest checkpoint has a file that was cut off. Its load is refused, and has set the count of steps before that.
python docs/confirmed/nemo_automodel_refused_load_has_loaded.py      # NeMo AutoModel 0.7.0, a CPU
"""
import contextlib
import io
import logging
import os
import sys
import tempfile
from types import SimpleNamespace

import torch
from nemo_automodel.components.checkpoint.config import CheckpointingConfig
from nemo_automodel.components.checkpoint.utils import find_latest_checkpoint
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.recipes.base_recipe import BaseRecipe

logging.disable(logging.ERROR)

class Recipe(BaseRecipe):
    def __init__(self, folder, step):
        self.cfg, self.peft_config, self.device_mesh, self.held = ConfigNode({}), None, None, {"step": step}
        self.checkpointer = CheckpointingConfig(checkpoint_dir=folder, save_consolidated=False).build(0, 0, 0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.step_scheduler = SimpleNamespace(state_dict=lambda: self.held, load_state_dict=self.held.update)

with tempfile.TemporaryDirectory() as folder:
    for step in (2, 4):
        Recipe(folder, step).save_checkpoint(0, step, 1.0)
    os.truncate(f"{folder}/epoch_0_step_4/model/shard-00001-model-00001-of-00001.safetensors", 30)
    resumed, latest = Recipe(folder, 0), os.path.basename(os.path.realpath(find_latest_checkpoint(folder)))
    words = "nothing was raised"
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            resumed.load_checkpoint("LATEST")
        except BaseException as error:  # DCP's CheckpointException is no Exception
            words = type(error).__name__
print(f"the latest is {latest}; its load raised {words}, and the count of steps is {resumed.held['step']} after it")
sys.exit(not (latest == "epoch_0_step_4" and resumed.held["step"] == 4 and "nothing" not in words))
