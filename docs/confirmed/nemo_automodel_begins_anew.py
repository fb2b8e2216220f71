"""`restore_from: LATEST` on a folder without a checkpoint is no error: a line is logged, and the run begins anew.
python docs/confirmed/nemo_automodel_begins_anew.py      # NeMo AutoModel 0.7.0, a CPU
"""
import sys
import tempfile

from nemo_automodel.components.checkpoint.config import CheckpointingConfig
from nemo_automodel.recipes.base_recipe import BaseRecipe

with tempfile.TemporaryDirectory() as folder:
    recipe = BaseRecipe()
    recipe.checkpointer = CheckpointingConfig(checkpoint_dir=folder).build(dp_rank=0, tp_rank=0, pp_rank=0)
    try:
        words = f"returns {recipe.load_checkpoint('LATEST')}"
    except Exception as error:
        words = f"raises {type(error).__name__}: {error}"
print(f"a load of the latest checkpoint of an empty folder {words}")
sys.exit(words != "returns None")
