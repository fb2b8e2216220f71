"""The trainer with tensor parallelism by hand under test by rankproof."""


from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from tp_trainer import Block, Trainer

from contracts.instruments import numerics
from contracts.spec import Abilities, Arrays, NotOffered, Recipe, Session, Step, Tokens
from contracts.stacks.kit.adapter import Adapter, Steps
from contracts.stacks.kit.declining import lacks
from contracts.stacks.kit.links import Link, same
from contracts.stacks.kit.runs import Cut

DTYPES = {"declared": torch.float32, "float32": torch.float32, "float64": torch.float64}


class Stack(Adapter):
    name, version = "tp-trainer", "1"
    abilities = Abilities(
        has=frozenset((
            "attention", "mlp", "gqa", "swiglu", "adamw", "cosine", "constant", "float32", "float64", "microbatches",
            "dp", "tp", "tp-without-sp", "tp-without-fsdp", "uneven-vocab",
        )),
        lacks=tuple(lacks(feature, "stack", reason) for reason, features in {
            "it has attention and gated MLPs": "experts mamba narrow-scan recurrent unpaired mla dsa qk-norm relu2",
            "it routes none": "softmax sigmoid top-1 selection-bias shared-expert route-scale balance-loss z-loss",
            "it has no scan": "parallel-ssm",
            "its linear layers have none": "attention-bias mlp-bias expert-bias router-bias",
            "it has none": "hyper-connections prediction-heads tied muon linear WSD changing-decay bf16 fp16 fp8 "
            "recompute compile windows packed own-data uneven-microbatches checkpoint checkpoint-of-a-recipe "
            "validation",
            "each rank has equal parts": "uneven-kv",
            "it has tensor and data parallelism": "sp fsdp replicas cp pp ep etp",
        }.items() for feature in features.split()),
    )  # fmt: skip

    def layer(self, number: int) -> str:
        return f"{1 + number // 2}."

    def outside_of(self, recipe: Recipe) -> Mapping[str, str]:
        last = 1 + recipe.depth // 2
        return {"embedding.weight": "0.weight", "norm.weight": f"{last}.weight", "head.weight": f"{last + 1}.weight"}

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        yield same("norm_1.weight" if letter == "A" else "norm_2.weight", "norm.weight")
        attention, mlp = {"q": "wq", "k": "wk", "v": "wv", "o": "wo"}, {"gate": "w1", "up": "w3", "down": "w2"}
        for theirs, ours in (attention if letter == "A" else mlp).items():
            yield same(f"{theirs}.weight", f"mixer.{ours}.weight")

    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        return Block(**sizes_of(recipe))

    def branch(self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor) -> Tensor:
        if letter == "E":
            return layer.mlp(layer.norm_2(x_BTD))
        if (documents_BT != documents_BT[:, :1]).any():
            raise NotOffered("tp-trainer: a row is one document", "stack")
        return layer.attend(layer.norm_1(x_BTD))

    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        return Training(session, links)


class Training(Steps):
    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        super().__init__(session, links)
        recipe, optim, execution = session.recipe, session.recipe.optim, session.execution
        tp, low = execution.degrees.tp, optim.lr if optim.schedule == "constant" else optim.min_lr
        self.trainer = Trainer(
            sizes_of(recipe), recipe.depth // 2, recipe.vocab, optim.lr, tp, execution.world // tp, optim.clip,
            recipe.seed, optim.warmup, optim.steps, low, optim.weight_decay, (optim.beta1, optim.beta2),
            DTYPES[execution.precision],
        )  # fmt: skip
        self.module = self.trainer.model

    def cut(self) -> Mapping[str, Cut]:
        if not self.trainer.group:
            return {}
        mesh = DeviceMesh.from_group(self.trainer.group, "cpu")
        return {name: (mesh, (Shard(dim),)) for name, dim in self.trainer.cut.items()}

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self.trainer.optimizer,)

    def generators(self) -> Arrays:
        return numerics.arrays({"torch": torch.get_rng_state()})

    def forward(self, batch: Tokens, backward: bool) -> tuple[Tensor, Mapping[str, float]]:
        tokens, labels = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
        loss = self.trainer.backward(tokens, labels, self.session.execution.microbatches)
        return self.module(tokens).detach(), {"lm": loss, "total": loss}

    def step(self, batch: Tokens) -> Step:
        tokens, labels = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
        loss = self.trainer.backward(tokens, labels, self.session.execution.microbatches)
        self.note(self.trainer.done + 1)
        rate, norm, factor = self.trainer.apply()
        return Step(number=self.trainer.done, losses={"lm": loss, "total": loss}, tokens=int((labels != -100).sum()),
                    lr=rate, grad_norm=norm, clip_coef=factor)  # fmt: skip


def sizes_of(recipe: Recipe) -> dict[str, Any]:
    return {
        "dim": recipe.hidden, "heads": recipe.heads, "groups": recipe.kv_groups, "size": recipe.head_dim,
        "inner": recipe.ffn_hidden, "theta": recipe.rope_theta, "eps": recipe.norm_eps,
    }  # fmt: skip
