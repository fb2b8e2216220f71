"""The toy trainer under test by rankproof: names, and calls of the trainer. What is alike in adapters is the kit's.

docs/put-your-stack-under-test.md shows how it grew.
"""


from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from trainer import Block, Config, Trainer, wide

from contracts.instruments import numerics
from contracts.spec import Abilities, Arrays, NotOffered, Recipe, Refusals, Session, Step, Tokens, refuse
from contracts.stacks.kit.adapter import Adapter, Steps
from contracts.stacks.kit.declining import lacks
from contracts.stacks.kit.links import Link, joined, of_heads, ordered, paired, same

DTYPES = {"declared": torch.float32, "float32": torch.float32, "float64": torch.float64}


class Stack(Adapter):
    name = "toy"
    version = "1"
    abilities = Abilities(
        has=frozenset((
            "attention", "mlp", "gqa", "qk-norm", "swiglu", "adamw", "cosine", "constant", "float32", "float64", "dp",
            "microbatches", "uneven-microbatches", "packed", "checkpoint", "checkpoint-of-a-recipe",
        )),
        lacks=tuple(
            lacks(feature, "stack", reason) for reason, features in {
                "it has attention and MLPs": "experts mamba parallel-ssm narrow-scan recurrent unpaired",
                "its linear layers have none": "attention-bias mlp-bias expert-bias router-bias",
                "it routes none": "softmax sigmoid top-1 selection-bias shared-expert route-scale balance-loss z-loss",
                "its attention is grouped, its MLP gated": "mla dsa relu2 hyper-connections prediction-heads tied",
                "it has AdamW and a cosine, in float32": "muon linear WSD changing-decay bf16 fp16 fp8 recompute "
                "compile windows",
                "it makes its sequences itself, and reads no file": "own-data",
                "it has data parallelism by DDP, and nothing beside it": "fsdp replicas tp cp pp ep etp",
            }.items()
            for feature in features.split()
        ),
    )  # fmt: skip
    outside = MappingProxyType({name: name for name in ("embedding.weight", "norm.weight", "head.weight")})

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        found = Refusals()
        found.unless(depth >= 1, "depth", depth, "must be at least 1", "give a depth")
        found.unless(bool(pattern), "pattern", pattern, "is empty", "write at least one letter")
        for at, letter in enumerate(pattern, start=1):
            found.unless(letter in "AEMR|", "pattern", pattern, f"has {letter!r} in column {at}", "write A, E, M or R")
        found.raise_any()
        if set(pattern) & set("MR|"):
            raise NotOffered("has no M, no R and no pipeline", "stack")
        return tuple({"A": "ablock", "E": "eblock"}[pattern[layer % len(pattern)]] for layer in range(depth))

    # names
    def layer(self, number: int) -> str:
        return f"blocks.{number // 2}."  # one of its blocks is two of ours, A and E

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        yield same("attention_norm.weight" if letter == "A" else "mlp_norm.weight", "norm.weight")
        if letter == "E":
            for theirs, ours in {"gate": "w1", "up": "w3", "down": "w2"}.items():
                yield same(f"mlp.{theirs}.weight", f"mixer.{ours}.weight")
            return
        size, heads, groups = recipe.head_dim, recipe.heads, recipe.kv_groups
        three = [f"mixer.{name}.weight" for name in ("wq", "wk", "wv")]
        sizes = [heads * size, groups * size, groups * size]
        turned = of_heads(paired(size), heads + groups)  # queries and keys turn in pairs of neighbours
        yield joined("attention.qkv.weight", three, sizes, order=[*turned, *range(len(turned), sum(sizes))])
        yield same("attention.out.weight", "mixer.wo.weight")
        for name in ("q_norm", "k_norm") if recipe.qk_norm else ():
            yield ordered(f"attention.{name}.weight", f"mixer.{name}.weight", paired(size))

    # one block
    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        return Block(config_of(recipe))

    def branch(self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor) -> Tensor:
        if letter == "E":
            return layer.mlp(layer.mlp_norm(x_BTD))
        return layer.attention(layer.attention_norm(x_BTD), documents_BT)

    # one run
    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        return Toy(session, links)


class Toy(Steps):
    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        super().__init__(session, links)
        if session.keep is not None or session.durable is not None:
            raise NotOffered("toy: it keeps every checkpoint", "stack")
        world, dtype = session.execution.world, DTYPES[session.execution.precision]
        self.trainer = Trainer(config_of(session.recipe), world, dist.get_rank() if world > 1 else 0, dtype)
        self.module = self.trainer.model

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self.trainer.optimizer,)

    def generators(self) -> Arrays:
        return numerics.arrays({"data": self.trainer.data.get_state(), "torch": torch.get_rng_state()})

    def forward(self, batch: Tokens, backward: bool) -> tuple[Tensor, Mapping[str, float]]:
        given = tensors_of(batch)
        loss, _ = self.trainer.backward(given, self.session.execution.microbatches)
        return wide(self.trainer.model(given[0], given[2])), {"lm": loss, "total": loss}

    def step(self, batch: Tokens) -> Step:
        loss, count = self.trainer.backward(tensors_of(batch), self.session.execution.microbatches)
        self.note(self.trainer.step + 1)
        rate, norm, factor = self.trainer.apply()
        return Step(number=self.trainer.step, losses={"lm": loss, "total": loss}, tokens=count, lr=rate,
                    grad_norm=norm, clip_coef=factor)  # fmt: skip

    def save(self, folder: str) -> None:
        self.trainer.save(folder)

    def load(self, folder: str) -> None:
        try:
            self.trainer.load(folder)
        except (FileNotFoundError, ValueError) as error:
            raise refuse("load", folder, str(error), "name a folder with a checkpoint of this run") from None
        self.number = self.trainer.step


def config_of(recipe: Recipe) -> Config:
    optim = recipe.optim
    config = Config(
        dim=recipe.hidden, heads=recipe.heads, kv_heads=recipe.kv_groups, inner=recipe.ffn_hidden, vocab=recipe.vocab,
        theta=recipe.rope_theta, eps=recipe.norm_eps, qk_norm=recipe.qk_norm, seed=recipe.seed, lr=optim.lr,
        min_lr=optim.min_lr, warmup=optim.warmup, steps=optim.steps, decay=optim.weight_decay, clip=optim.clip,
        betas=(optim.beta1, optim.beta2), batch=recipe.batch.total, length=recipe.seq_length, layers=recipe.depth // 2,
    )  # fmt: skip
    return replace(config, min_lr=config.lr) if optim.schedule == "constant" else config


def tensors_of(batch: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    tokens_BT = numerics.tensor(batch.tokens)
    documents_BT = torch.zeros_like(tokens_BT) if batch.documents is None else numerics.tensor(batch.documents)
    return tokens_BT, numerics.tensor(batch.labels), documents_BT
