"""A small trainer as a team has one: a decoder with grouped-query attention and SwiGLU, AdamW, DDP, checkpoints.

    python trainer.py --steps 50
    torchrun --standalone --nproc-per-node 2 trainer.py --steps 50 --save runs/toy
"""

import argparse
import math
import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Config:
    dim: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    vocab: int = 256
    theta: float = 10_000.0
    eps: float = 1e-5
    qk_norm: bool = True
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 10
    steps: int = 50
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    batch: int = 8
    length: int = 64
    seed: int = 1


def wide(x):
    """At least float32, so that norms and rotations are not computed in bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        normed = wide(x) * torch.rsqrt(wide(x).pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


def rotate(x_BTHd, position_BT, theta):
    """Rotary embedding of neighbouring pairs, as in Llama's own code."""
    half = x_BTHd.shape[-1] // 2
    rates = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle_BTd = position_BT[..., None] * rates
    turn = torch.polar(torch.ones_like(angle_BTd), angle_BTd).to(torch.promote_types(x_BTHd.dtype, torch.complex64))
    pairs = torch.view_as_complex(wide(x_BTHd).unflatten(-1, (half, 2)).contiguous())
    return torch.view_as_real(pairs * turn[:, :, None]).flatten(-2).type_as(x_BTHd)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.size = config, config.dim // config.heads
        self.qkv = nn.Linear(config.dim, (config.heads + 2 * config.kv_heads) * self.size, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.q_norm, self.k_norm = (
            RMSNorm(self.size, config.eps) if config.qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(self, x, documents_BT):
        heads, groups = self.config.heads, self.config.kv_heads
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.size)).split((heads, groups, groups), dim=2)
        place = torch.arange(x.shape[1]).expand_as(documents_BT)
        begins = torch.cat([torch.ones_like(documents_BT[:, :1]), documents_BT.diff(dim=1)], dim=1) != 0
        position_BT = place - torch.where(begins, place, 0).cummax(dim=1).values
        q = rotate(self.q_norm(q), position_BT, self.config.theta)
        k = rotate(self.k_norm(k), position_BT, self.config.theta)
        same = documents_BT[:, :, None] == documents_BT[:, None, :]
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=same.tril()[:, None], enable_gqa=True
        )
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate, self.up = (nn.Linear(config.dim, config.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(config.inner, config.dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention_norm, self.mlp_norm = (RMSNorm(config.dim, config.eps) for _ in range(2))
        self.attention, self.mlp = Attention(config), MLP(config)

    def forward(self, x, documents_BT):
        x = x + self.attention(self.attention_norm(x), documents_BT)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm, self.head = RMSNorm(config.dim, config.eps), nn.Linear(config.dim, config.vocab, bias=False)
        for each in self.parameters():
            if each.dim() > 1:
                nn.init.normal_(each, std=0.02)

    def forward(self, tokens_BT, documents_BT):
        x = self.embedding(tokens_BT)
        for block in self.blocks:
            x = block(x, documents_BT)
        return self.head(self.norm(x))


class Trainer:
    """One process of a run: `backward` for each microbatch of a step, then `apply`."""

    def __init__(self, config, world=1, rank=0, dtype=torch.float32):
        torch.manual_seed(config.seed)
        self.config, self.world, self.rank, self.step = config, world, rank, 0
        self.model = Decoder(config).to(dtype)
        self.outer = DistributedDataParallel(self.model) if world > 1 else self.model
        matrices = [each for each in self.model.parameters() if each.dim() > 1]
        vectors = [each for each in self.model.parameters() if each.dim() < 2]
        groups = [{"params": matrices, "weight_decay": config.decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=1e-8)
        self.data = torch.Generator().manual_seed(config.seed)

    def batch(self):
        """The next global batch: counting sequences, which a decoder can learn. The same on every rank."""
        start, stride = (torch.randint(1, top, (self.config.batch, 1), generator=self.data) for top in (256, 8))
        rows = (start + stride * torch.arange(self.config.length + 1)) % self.config.vocab
        return rows[:, :-1], rows[:, 1:], torch.zeros_like(rows[:, 1:])

    def loss(self, tokens_BT, labels_BT, documents_BT):
        """Summed over the labels that count."""
        logits = wide(self.outer(tokens_BT, documents_BT))
        return F.cross_entropy(logits.flatten(0, 1), labels_BT.flatten(), ignore_index=-100, reduction="sum")

    def backward(self, batch, microbatches=1):
        """Gradients of a global batch; its mean loss and the number of labels that count."""
        self.optimizer.zero_grad()
        count, total = int((batch[1] != -100).sum()), 0.0
        mine = [each.tensor_split(self.world)[self.rank] for each in batch]
        pieces = zip(*(each.tensor_split(microbatches) for each in mine), strict=True)
        for number, piece in enumerate(pieces, start=1):
            together = number == microbatches or self.world == 1
            with nullcontext() if together else self.outer.no_sync():
                loss = self.loss(*piece) / count
                (loss * self.world).backward()  # DDP divides by the number of ranks
            total += loss.detach()
        if self.world > 1:
            dist.all_reduce(total)
        return float(total), count

    def apply(self):
        """Clip, move, and say the rate, the norm of the gradients and what they were multiplied by."""
        self.step += 1
        rate = self.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        clip = self.config.clip or math.inf
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), clip))
        self.optimizer.step()
        return rate, norm, min(1.0, clip / (norm + 1e-6))

    def rate(self, step):
        config = self.config
        if step <= config.warmup:
            return config.lr * step / config.warmup
        done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
        return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2

    def save(self, folder):
        if self.rank == 0:
            held = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
                    "data": self.data.get_state()}
            held["config"] = asdict(self.config)
            torch.save(held, Path(folder) / "writing")
            (Path(folder) / "writing").replace(Path(folder) / f"step_{self.step:06d}.pt")
        if self.world > 1:
            dist.barrier()

    def load(self, folder):
        files = sorted(Path(folder).glob("step_*.pt"))
        if not files:
            raise FileNotFoundError(f"there is no checkpoint in {folder}")
        held = torch.load(files[-1])
        other = [name for name, value in asdict(self.config).items() if held["config"][name] != value]
        if other:
            raise ValueError(f"{files[-1]} was saved with another {', '.join(other)}")
        self.model.load_state_dict(held["model"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.step = held["step"]
        self.data.set_state(held["data"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save")
    given = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    many = dist.is_initialized()
    trainer = Trainer(Config(steps=given.steps), dist.get_world_size() if many else 1, dist.get_rank() if many else 0)
    for _ in range(given.steps):
        loss, _ = trainer.backward(trainer.batch())
        trainer.apply()
        if trainer.rank == 0:
            print(f"step {trainer.step} loss {loss:.4f}")  # noqa: T201
    if given.save:
        Path(given.save).mkdir(parents=True, exist_ok=True)
        trainer.save(given.save)
    if many:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
