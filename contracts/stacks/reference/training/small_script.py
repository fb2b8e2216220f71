"""A small training script, as a user writes one: DDP on several ranks, two microbatches a step, dropout, tied weights,
an evaluation behind each step. The OBS contracts are judged on what is observed of it."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contracts import observe


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(97, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 97, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.embed(rows[:, :-1])
        x = x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return F.cross_entropy(self.head(x).flatten(0, 1), rows[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    data = torch.Generator().manual_seed(0)
    for _ in range(2):
        optimizer.zero_grad()
        observe.step(microbatches=2)
        for micro in range(2):
            rows = torch.randint(97, (8, 9), generator=data)[rank::world]
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                loss = model(rows) / 2
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            dist.all_reduce(net(rows), op=dist.ReduceOp.SUM)
        model.train()  # type: ignore[no-untyped-call]  # torch's
    dist.destroy_process_group()
    sys.exit(0)


if __name__ == "__main__":
    main()
