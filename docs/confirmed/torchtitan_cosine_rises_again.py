"""The cosine schedule of torchtitan rises again after its last step, and the linear one falls below its minimum.

Run with an interpreter that has torchtitan 0.3.0 or 0.2.2. Exit code 0: the fault is there.
"""
import sys
from types import ModuleType

import torch

kernels = sys.modules["torchtitan.models.moe.kernels"] = ModuleType("kernels")  # of 0.2.2: needs triton
kernels.__getattr__ = lambda name: None
try:
    from torchtitan.components.optimizer import LRSchedulersContainer
except ImportError:
    from torchtitan.components.lr_scheduler import build_lr_schedulers
    from torchtitan.config import LRScheduler

rates = {}
for kind in ("cosine", "linear"):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    given = {"warmup_steps": 2, "total_steps": 6, "decay_type": kind, "min_lr_factor": 0.2}
    if "LRScheduler" in globals():
        schedule = build_lr_schedulers([optimizer], LRScheduler(**given), 6)
    else:
        schedule = LRSchedulersContainer.Config(**given).build(optimizers=[optimizer], training_steps=6)
    rates[kind] = []
    for _ in range(9):
        rates[kind].append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        schedule.step()
    print(f"{kind}: rates of 9 steps, of which the schedule has 6: {rates[kind]}; the minimum is 0.2")
sys.exit(not (rates["cosine"][8] > 0.2 > rates["linear"][8]))
