"""A small trainer with tensor parallelism by hand: column- and row-parallel linears over torch.distributed.

    torchrun --standalone --nproc-per-node 4 tp_trainer.py 2
"""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Same(torch.autograd.Function):
    """Each rank of a group reads the same input, and the gradients add up."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Sum(torch.autograd.Function):
    """The outputs of a group add up, and each rank has the whole gradient."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Linear(nn.Module):
    """Of its weight each rank of a group holds the rows (`dim` 0) or the columns (`dim` 1)."""

    def __init__(self, inputs, outputs, dim, group=None):
        super().__init__()
        self.dim, self.group = dim, group
        whole = torch.empty(outputs, inputs).normal_(std=0.02)  # each rank draws all of it and keeps its part
        mine = whole.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)] if group else whole
        self.weight = nn.Parameter(mine.clone())

    def forward(self, x):
        if not self.group:
            return F.linear(x, self.weight)
        if self.dim == 1:
            return Sum.apply(F.linear(x, self.weight), self.group)
        return F.linear(Same.apply(x, self.group), self.weight)


class Block(nn.Module):
    def __init__(self, dim, heads, groups, size, inner, theta, eps, group=None):
        super().__init__()
        self.size, self.theta = size, theta
        self.norm_1, self.norm_2 = nn.RMSNorm(dim, eps), nn.RMSNorm(dim, eps)
        self.q, self.k, self.v = (Linear(dim, each * size, 0, group) for each in (heads, groups, groups))
        self.gate, self.up = (Linear(dim, inner, 0, group) for _ in range(2))
        self.o, self.down = Linear(heads * size, dim, 1, group), Linear(inner, dim, 1, group)

    def turned(self, x):
        half = self.size // 2
        angle = torch.arange(x.shape[-2])[:, None] * self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        one, other = x.split(half, dim=-1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)

    def attend(self, x):
        q, k, v = (each(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(-2))

    def mlp(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x):
        x = x + self.attend(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Trainer:
    def __init__(self, sizes, layers, vocab, lr, tp=1, dp=1, clip=1.0, seed=1, warmup=2, steps=20, min_lr=1e-5,
                 decay=0.1, betas=(0.9, 0.95), dtype=torch.float32):  # fmt: skip
        torch.manual_seed(seed)
        self.tp, self.dp, self.clip, self.done = tp, dp, clip, 0
        self.lr, self.min_lr, self.warmup, self.steps = lr, min_lr, warmup, steps
        self.rank = dist.get_rank() if tp * dp > 1 else 0
        ranks = torch.arange(tp * dp).view(dp, tp)  # a row shares weights, a column a batch
        self.group, self.across = (dist.new_subgroups_by_enumeration(each.tolist())[0] if each.shape[1] > 1 else None
                                   for each in (ranks, ranks.T))  # fmt: skip
        blocks = [Block(**sizes, group=self.group) for _ in range(layers)]
        norm, head = nn.RMSNorm(sizes["dim"], sizes["eps"]), Linear(sizes["dim"], vocab, 0)
        self.model = nn.Sequential(nn.Embedding(vocab, sizes["dim"]), *blocks, norm, head).to(dtype)
        cut = {name: each for name, each in self.model.named_modules() if getattr(each, "group", None)}
        self.cut = {f"{name}.weight": each.dim for name, each in cut.items()}
        groups = [{"params": [each for each in self.model.parameters() if (each.dim() > 1) == matrices],
                   "weight_decay": decay * matrices} for matrices in (True, False)]  # fmt: skip
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas)

    def backward(self, tokens, labels, microbatches=1):
        """Gradients of a global batch, and its mean loss."""
        count, total = int((labels != -100).sum()), 0.0
        mine = (each.chunk(self.dp)[self.rank // self.tp].chunk(microbatches) for each in (tokens, labels))
        for piece, wanted in zip(*mine, strict=True):
            logits = self.model(piece).flatten(0, 1)
            loss = F.cross_entropy(logits, wanted.flatten(), ignore_index=-100, reduction="sum") / count
            loss.backward()
            total += loss.detach()
        for each in (total, *(each.grad for each in self.model.parameters())) if self.dp > 1 else ():
            dist.all_reduce(each, group=self.across)
        return float(total)

    def apply(self):
        """Clip and move. Returns the rate, the norm of the gradients, and what they were multiplied by."""
        squares = {name: each.grad.square().sum() for name, each in self.model.named_parameters()}
        cut = sum(each for name, each in squares.items() if name in self.cut)
        if self.group:
            dist.all_reduce(cut, group=self.group)
        norm = float((cut + sum(each for name, each in squares.items() if name not in self.cut)).sqrt())
        factor = min(1.0, (self.clip or math.inf) / (norm + 1e-6))
        self.done += 1
        past = min(1.0, (self.done - self.warmup) / max(1, self.steps - self.warmup))
        rate = self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * past)) / 2
        rate = self.lr * self.done / self.warmup if self.done <= self.warmup else rate
        for each in self.model.parameters():
            each.grad *= factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return rate, norm, factor


if __name__ == "__main__":
    dist.init_process_group("gloo")
    sizes = {"dim": 32, "heads": 4, "groups": 2, "size": 8, "inner": 64, "theta": 1e4, "eps": 1e-5}
    trainer = Trainer(sizes, 2, 64, 1e-2, tp := int(sys.argv[1]), dist.get_world_size() // tp)
    rows = (torch.arange(8)[:, None] + torch.arange(17)) % 64
    for _ in range(20):
        print(trainer.done + 1, trainer.backward(rows[:, :-1], rows[:, 1:]), *trainer.apply())  # noqa: T201
