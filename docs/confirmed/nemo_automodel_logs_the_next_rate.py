"""The rate in the log of a step belongs to the step after: `lr` is read after `scheduler.step(1)`. Under a warm-up from
0 the first step moves nothing, and its log has a rate.
python docs/confirmed/nemo_automodel_logs_the_next_rate.py      # NeMo AutoModel 0.7.0, a CPU
"""
import inspect
import sys

import torch
from nemo_automodel.components.optim.scheduler import OptimizerParamScheduler
from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction as Recipe

weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.AdamW([weight], lr=1.0)
scheduler = OptimizerParamScheduler(
    optimizer, init_lr=0.0, max_lr=1.0, min_lr=0.1, lr_warmup_steps=2, lr_decay_steps=6, lr_decay_style="linear",
    start_wd=0.0, end_wd=0.0, wd_incr_steps=6, wd_incr_style="constant",
)
text = inspect.getsource(Recipe._run_train_optim_step)
order = [text.index(each) for each in ("opt.step()", "scheduler.step(1)", '"lr": self.optimizer[0].param_groups[0]["lr"]')]
print(f"it steps the optimizer, then the schedule, then reads the rate: {order == sorted(order)}")
before = weight.item()
weight.grad = torch.ones(1)
optimizer.step()
scheduler.step(1)
print(f"step 1 moved the weight by {before - weight.item():g}, and its log has lr {optimizer.param_groups[0]['lr']:g}")
sys.exit(not (order == sorted(order) and weight.item() == before and optimizer.param_groups[0]["lr"] == 0.5))
