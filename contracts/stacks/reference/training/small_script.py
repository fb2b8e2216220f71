"""A small training script, as a user writes one: DDP on several ranks, two microbatches a step, dropout, tied weights,
experts whose load a bias evens out, a schedule, an evaluation after each step, recomputation, checkpoints. The OBS
contracts are judged on what is observed of it."""

import argparse
import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from contracts import observe


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = self.gate(x).sigmoid()
        chosen = (scores + bias).topk(2).indices
        return scores.gather(-1, chosen), chosen, scores


class Experts(nn.Module):
    """Two of eight for each token. The bias of those that have too many assignments falls (arXiv 2408.15664)."""

    expert_bias: torch.Tensor
    tokens_per_expert: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Router(), nn.Linear(16, 8 * 16)
        self.register_buffer("expert_bias", torch.zeros(8))
        self.register_buffer("tokens_per_expert", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen, _ = self.router(x, self.expert_bias)
        if self.training:
            self.tokens_per_expert += F.one_hot(chosen, 8).sum((0, 1, 2))
        every = self.experts(x).unflatten(-1, (8, 16))
        weighted: torch.Tensor = scores[..., None] * every.gather(-2, chosen[..., None].expand(-1, -1, -1, 16))
        return weighted.sum(-2)

    @torch.no_grad()
    def balance(self) -> None:
        dist.all_reduce(self.tokens_per_expert)
        self.expert_bias += 0.01 * (self.tokens_per_expert.mean() - self.tokens_per_expert).sign()
        self.tokens_per_expert.zero_()


class Net(nn.Module):
    def __init__(self, dropout: float, recompute: bool) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(97, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(16, 97, bias=False)
        self.head.weight, self.recompute = self.embed.weight, recompute
        self.moe = Experts()

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(F.gelu(self.up(self.norm(x)))))  # type: ignore[no-any-return]  # torch's

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.embed(rows[:, :-1])
        x = x + (checkpoint(self.branch, x, use_reentrant=False) if self.recompute else self.branch(x))
        x = x + self.moe(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), rows[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--save", help="a file for the state after the first step")
    parser.add_argument("--resume", help="such a file")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = Net(args.dropout, args.recompute)
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    torch.manual_seed(100 + rank)
    data, done = torch.Generator().manual_seed(0), 0
    if args.resume:
        kept = torch.load(args.resume)
        net.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        torch.set_rng_state(kept["random"])
        data.set_state(kept["data"])
        done = 1
    for step in range(done, args.steps):
        optimizer.zero_grad()
        observe.step(microbatches=2)
        for micro in range(2):
            rows = torch.randint(97, (8, 9), generator=data)[rank::world]
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                loss = model(rows) / 2
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        net.moe.balance()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            dist.all_reduce(net(rows), op=dist.ReduceOp.SUM)
        model.train()  # type: ignore[no-untyped-call]  # torch's
        schedule.step()
        if args.save and step == 0:
            torch.save(
                {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
                 "random": torch.get_rng_state(), "data": data.get_state()}, args.save,
            )  # fmt: skip
    dist.destroy_process_group()
    sys.exit(0)


if __name__ == "__main__":
    main()
