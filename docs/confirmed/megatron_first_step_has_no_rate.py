"""Under a warm-up the rate of Megatron-Core's first step is 0: the schedule counts the steps that were taken.

A warm-up of 4 steps to a rate of 1: what the optimizer holds when each step is taken. By step it would be 0.25 to 1.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import types
import warnings

warnings.simplefilter("ignore")
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

optimizer = types.SimpleNamespace(param_groups=[{"lr": 0.0, "weight_decay": 0.0}])
schedule = OptimizerParamScheduler(
    optimizer, init_lr=0.0, max_lr=1.0, min_lr=0.0, lr_warmup_steps=4, lr_decay_steps=8, lr_decay_style="linear",
    start_wd=0.0, end_wd=0.0, wd_incr_steps=0, wd_incr_style="constant", use_checkpoint_opt_param_scheduler=False,
)
rates = []
for _ in range(5):
    rates.append(optimizer.param_groups[0]["lr"])  # optimizer.step() takes this one
    schedule.step(increment=1)
print(f"rates of steps 1 to 5: {rates}")
sys.exit(rates[0] > 0.0)
