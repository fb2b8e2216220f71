"""The cosine schedule of torchtitan rises again behind its last step, and the linear one falls below its minimum.

Run with an interpreter that has torchtitan 0.3.0. Exit code 0: the fault is there.
"""
import sys

import torch
from torchtitan.components.optimizer import LRSchedulersContainer

rates = {}
for kind in ("cosine", "linear"):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    config = LRSchedulersContainer.Config(warmup_steps=2, total_steps=6, decay_type=kind, min_lr_factor=0.2)
    schedule = config.build(optimizers=[optimizer], training_steps=6)
    rates[kind] = []
    for _ in range(9):
        rates[kind].append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        schedule.step()
    print(f"{kind}: rates of 9 steps, of which the schedule has 6: {rates[kind]}; the minimum is 0.2")
sys.exit(not (rates["cosine"][8] > 0.2 > rates["linear"][8]))
