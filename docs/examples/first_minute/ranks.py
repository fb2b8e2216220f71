import os
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
torch.manual_seed(0)
body = nn.Sequential(nn.Embedding(97, 64), nn.Linear(64, 64), nn.GELU())
model = nn.Sequential(OrderedDict(body=body, head=nn.Linear(64, 97)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if world > 1:
    dist.init_process_group("gloo")
    model.body = DDP(model.body)  # the head is left out: its gradients are never reduced
text = torch.randint(97, (8, 65)).chunk(world)[rank]
for step in range(3):
    optimizer.zero_grad()
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
