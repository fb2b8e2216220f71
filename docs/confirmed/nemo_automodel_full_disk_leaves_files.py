"""A save that finds no room raises, and leaves what it wrote. Only the next save of that step removes it.
python docs/confirmed/nemo_automodel_full_disk_leaves_files.py      # NeMo AutoModel 0.7.0, a CPU
"""
import logging
import resource
import sys
import tempfile
from pathlib import Path

import torch
from nemo_automodel.components.checkpoint.config import CheckpointingConfig
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.recipes.base_recipe import BaseRecipe

logging.disable(logging.ERROR)

class Recipe(BaseRecipe):
    def __init__(self, folder):
        self.cfg, self.peft_config, self.device_mesh = ConfigNode({}), None, None
        self.checkpointer = CheckpointingConfig(checkpoint_dir=folder, save_consolidated=False).build(0, 0, 0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

with tempfile.TemporaryDirectory() as folder:
    Recipe(folder).save_checkpoint(0, 2, 1.0)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))  # bytes of a file: more raises OSError, as a full disk does
    words = "nothing was raised"
    try:
        Recipe(folder).save_checkpoint(0, 4, 1.0)
    except Exception as error:
        words = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    Recipe(folder).save_checkpoint(0, 6, 1.0)
    left = sorted(path.name for path in Path(folder, "epoch_0_step_4").rglob("*"))
print(f"the save of step 4 raised {words}, and after the save of step 6 there are still {', '.join(left)}")
sys.exit(not left)
