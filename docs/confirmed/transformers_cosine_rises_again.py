"""The schedule cosine_warmup_with_min_lr rises again behind its last step.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import get_scheduler

weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=1.0)
given = {"num_warmup_steps": 2, "num_training_steps": 6, "scheduler_specific_kwargs": {"min_lr": 0.2}}
schedule = get_scheduler("cosine_warmup_with_min_lr", optimizer, **given)
rates = []
for _ in range(8):
    rates.append(round(schedule.get_last_lr()[0], 4))
    optimizer.step()
    schedule.step()
print(f"rates of 8 steps, of which the schedule has 6: {rates}; min_lr is 0.2")
sys.exit(not (rates[5] == 0.2 < rates[6] < rates[7]))
