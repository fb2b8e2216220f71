"""The schedules cosine_with_min_lr and cosine_warmup_with_min_lr rise again after their last step.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import get_scheduler

found = []
for name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr"):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    given = {"num_warmup_steps": 2, "num_training_steps": 6, "scheduler_specific_kwargs": {"min_lr": 0.2}}
    schedule = get_scheduler(name, optimizer, **given)
    rates = []
    for _ in range(9):
        rates.append(round(schedule.get_last_lr()[0], 4))
        optimizer.step()
        schedule.step()
    print(f"{name}: rates of 9 steps, of which the schedule has 6: {rates}; min_lr is 0.2")
    found.append(0.2 in rates and rates[-1] > 0.2)
sys.exit(not all(found))
