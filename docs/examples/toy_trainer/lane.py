"""The toy trainer under test by rankproof: the adapter translates, and computes nothing that the trainer does not.

Begun by `rankproof init toy`; docs/put-your-stack-under-test.md tells how it grew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from trainer import Block, Config, Trainer, wide

from contracts.instruments import numerics
from contracts.spec.array import Arrays, Shape
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.errors import NotOffered, Refusals, refuse
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Degrees, Layout
from contracts.spec.training import (
    Built,
    BuiltLayer,
    Execution,
    Observed,
    Parameter,
    Pass,
    Role,
    Session,
    Step,
    Tokens,
    Trained,
)

ROLES: Mapping[str, Role] = {"embedding": "embedding", "head": "head", "norm": "norm"}
DTYPES = {"declared": torch.float32, "float32": torch.float32, "float64": torch.float64}


class Stack:
    name = "toy"
    version = "1"
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}
    offers: frozenset[str] = frozenset(
        {"blocks", "block_weights", "run_block", "built", "initial", "run_model", "train"}
    )

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        found = Refusals()
        found.unless(depth >= 1, "depth", depth, "must be at least 1", "give a depth")
        found.unless(bool(pattern), "pattern", pattern, "is empty", "write at least one letter")
        for column, letter in enumerate(pattern, start=1):
            known = letter in "AEMR|"
            found.unless(known, "pattern", pattern, f"has {letter!r} in column {column}", "write A, E, M or R")
        found.raise_any()
        if set(pattern) & set("MR|"):
            raise NotOffered("has no M, no R and no pipeline")
        return tuple({"A": "ablock", "E": "eblock"}[pattern[layer % len(pattern)]] for layer in range(depth))

    # one block
    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        letter = letter_of(recipe, layer)
        with torch.device("meta"):
            held = to_law(dict(Block(config_of(recipe)).state_dict()), letter, recipe)
        return {name: Shape(dtype="float32", shape=tuple(each.shape)) for name, each in held.items()}

    def run_block(self, call: BlockCall) -> BlockRun:
        letter, x_BTD = letter_of(call.recipe, call.layer), numerics.tensor(call.x)
        weights = numerics.tensors(call.weights)
        if any(each.dtype != x_BTD.dtype for each in weights.values()) or call.kernels or call.device != "cpu":
            raise NotOffered("runs on a CPU, in one dtype")
        block = Block(config_of(call.recipe)).to(x_BTD.dtype)
        block.load_state_dict(from_law(weights, letter, call.recipe), strict=False)
        x_BTD.requires_grad_(call.dy is not None)
        if letter == "A":
            y_BTD = block.attention(block.attention_norm(x_BTD), documents_of(call.documents, x_BTD))
        else:
            y_BTD = block.mlp(block.mlp_norm(x_BTD))
        if call.dy is None:
            return BlockRun(y=numerics.array(y_BTD))
        y_BTD.backward(numerics.tensor(call.dy))
        found = {name: each.grad for name, each in block.named_parameters() if each.grad is not None}
        gradients = to_law(found, letter, call.recipe) | {"x": x_BTD.grad}
        return BlockRun(y=numerics.array(y_BTD), gradients=numerics.arrays(gradients))

    # a whole model
    def built(self, recipe: Recipe, mode: Mode) -> Built:
        with torch.device("meta"):
            trainer = Trainer(model_of(recipe))
        groups = trainer.optimizer.param_groups
        decay = {id(each): group["weight_decay"] for group in groups for each in group["params"]}
        rows = tuple(
            Parameter(name=name, shape=tuple(each.shape), dtype="float32", compute="float32", role=role_of(name),
                      layer=layer_of(name), optimizer="adamw", weight_decay=decay[id(each)],
                      state={"step": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"})
            for name, each in trainer.model.named_parameters()
        )
        features = {"A": {"gqa", "rope"} | ({"qk_norm"} if recipe.qk_norm else set()), "E": {"swiglu"}}
        layers = tuple(
            BuiltLayer(number=number, family=letter, features=frozenset(features[letter]),
                       parameters=sum(torch.Size(row.shape).numel() for row in rows if row.layer == number))
            for number, letter in enumerate("AE" * trainer.config.layers)
        )
        return Built(layers=layers, parameters=rows, features=frozenset({"untied_embeddings"}))

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        return numerics.arrays(Trainer(model_of(recipe)).model.state_dict())

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        trainer = trainer_of(recipe, execution, weights)
        given = tensors_of(batch)
        loss, _ = trainer.backward(given, execution.microbatches)
        gradients = {name: each.grad for name, each in trainer.model.named_parameters()} if backward else {}
        logits = wide(trainer.model(given[0], given[2]))
        return Pass(logits=numerics.array(logits), losses={"lm": loss, "total": loss},
                    gradients=numerics.arrays(gradients))

    def train(self, session: Session) -> Trained:
        if session.windows or session.keep is not None or session.durable is not None:
            raise NotOffered("has no windows of other lengths, and keeps every checkpoint")
        if session.recipe.data.path is not None:
            raise NotOffered("makes its sequences itself, and reads no file")
        trainer = trainer_of(session.recipe, session.execution, session.weights)
        if session.load is not None:
            load(trainer, session.load)
        start = trainer.step
        loaded = step_of(trainer, session.observe, start) if session.load is not None and 0 in session.at else None
        steps = []
        for number in range(session.steps):
            given = tensors_of(session.batches[number]) if session.batches else trainer.batch()
            loss, count = trainer.backward(given, session.execution.microbatches)
            gradients = {name: each.grad.clone() for name, each in trainer.model.named_parameters()}
            rate, norm, factor = trainer.apply()
            if session.save is not None and trainer.step in session.save_at:
                trainer.save(session.save)
            seen = session.observe if not session.at or trainer.step in session.at else frozenset()
            steps.append(step_of(trainer, seen, trainer.step, gradients=gradients, loss=loss, tokens=count, lr=rate,
                                 grad_norm=norm, clip_coef=factor))
        return Trained(start=start, steps=tuple(steps), loaded=loaded)


# recipes
def config_of(recipe: Recipe) -> Config:
    """The sizes of a recipe; what the trainer does not have is declined."""
    lacking = [name for name in ("mla", "dsa", "mhc", "mtp", "fp8") if getattr(recipe, name) is not None]
    if lacking:
        raise NotOffered(f"has no {', '.join(lacking)}")
    optim = recipe.optim
    return Config(
        dim=recipe.hidden, heads=recipe.heads, kv_heads=recipe.kv_groups, inner=recipe.ffn_hidden, vocab=recipe.vocab,
        theta=recipe.rope_theta, eps=recipe.norm_eps, qk_norm=recipe.qk_norm, seed=recipe.seed, lr=optim.lr,
        min_lr=optim.min_lr, warmup=optim.warmup, steps=optim.steps, decay=optim.weight_decay, clip=optim.clip,
        betas=(optim.beta1, optim.beta2), batch=recipe.batch.total, length=recipe.seq_length,
        layers=recipe.depth // 2,
    )


def model_of(recipe: Recipe) -> Config:
    """The same for a whole model, which is attention and an MLP in turn."""
    letters = (recipe.pattern * recipe.depth)[: recipe.depth]
    if letters != "AE" * (recipe.depth // 2) or recipe.moe is not None or recipe.activation != "swiglu":
        raise NotOffered(f"has attention and a SwiGLU MLP in turn, and no {letters}")
    optim = recipe.optim
    if optim.rule != "adamw" or optim.schedule not in ("cosine", "constant"):
        raise NotOffered("has AdamW and a cosine")
    if recipe.dtype != "fp32" or not recipe.untied_embeddings:
        raise NotOffered("has float32 and embeddings that are not tied")
    config = config_of(recipe)
    return replace(config, min_lr=config.lr) if optim.schedule == "constant" else config


def trainer_of(recipe: Recipe, execution: Execution, weights: Arrays) -> Trainer:
    plain = Execution(mode=execution.mode, world=execution.world, layout=execution.layout,
                      precision=execution.precision, microbatches=execution.microbatches)
    if execution != plain or execution.degrees != Degrees():
        raise NotOffered("has data parallelism by DDP, and nothing beside it")
    rank = dist.get_rank() if execution.world > 1 else 0
    trainer = Trainer(model_of(recipe), execution.world, rank, DTYPES[execution.precision])
    if weights:
        trainer.model.load_state_dict(numerics.tensors(weights))
    return trainer


def load(trainer: Trainer, folder: str) -> None:
    try:
        trainer.load(folder)
    except (FileNotFoundError, ValueError) as error:
        raise refuse("load", folder, str(error), "name a folder with a checkpoint of this run") from None


# names
def letter_of(recipe: Recipe, layer: int) -> str:
    letter = recipe.pattern.replace("|", "")[layer % len(recipe.pattern.replace("|", ""))]
    if letter not in "AE" or (letter == "E" and (recipe.moe is not None or recipe.activation != "swiglu")):
        raise NotOffered("has attention and SwiGLU MLPs")
    return letter


def turned(rows: Tensor, size: int, *, back: bool = False) -> Tensor:
    """The trainer rotates neighbours, the law element i with i + d/2: the same heads in another order of elements."""
    order = torch.arange(size).unflatten(0, (2, -1)).T.flatten()
    order = order.argsort() if back else order
    return rows.unflatten(0, (-1, size))[:, order].flatten(0, 1)


def from_law(weights: Mapping[str, Tensor], letter: str, recipe: Recipe) -> dict[str, Tensor]:
    """A block's weights by the trainer's names, from those by the law's."""
    if letter == "E":
        names = {"gate": "w1", "up": "w3", "down": "w2"}
        return {"mlp_norm.weight": weights["norm.weight"]} | {
            f"mlp.{own}.weight": weights[f"mixer.{theirs}.weight"] for own, theirs in names.items()
        }
    size = recipe.head_dim
    q, k = (turned(weights[f"mixer.{name}.weight"], size) for name in ("wq", "wk"))
    held = {"attention_norm.weight": weights["norm.weight"], "attention.out.weight": weights["mixer.wo.weight"],
            "attention.qkv.weight": torch.cat([q, k, weights["mixer.wv.weight"]])}
    norms = ("q_norm", "k_norm") if recipe.qk_norm else ()
    return held | {f"attention.{name}.weight": turned(weights[f"mixer.{name}.weight"], size) for name in norms}


def to_law(held: Mapping[str, Tensor], letter: str, recipe: Recipe) -> dict[str, Tensor]:
    """The way back, of weights and of their gradients alike."""
    if letter == "E":
        names = {"w1": "gate", "w3": "up", "w2": "down"}
        return {"norm.weight": held["mlp_norm.weight"]} | {
            f"mixer.{theirs}.weight": held[f"mlp.{own}.weight"] for theirs, own in names.items()
        }
    size, groups = recipe.head_dim, recipe.kv_groups
    q, k, v = held["attention.qkv.weight"].split([recipe.heads * size, groups * size, groups * size])
    found = {"norm.weight": held["attention_norm.weight"], "mixer.wv.weight": v,
             "mixer.wq.weight": turned(q, size, back=True), "mixer.wk.weight": turned(k, size, back=True),
             "mixer.wo.weight": held["attention.out.weight"]}
    norms = ("q_norm", "k_norm") if recipe.qk_norm else ()
    return found | {
        f"mixer.{name}.weight": turned(held[f"attention.{name}.weight"], size, back=True) for name in norms
    }


def role_of(name: str) -> Role:
    return ROLES.get(name.removesuffix(".weight"), "norm" if "norm" in name else "matrix")


def layer_of(name: str) -> int | None:
    """Block i of the trainer is the layers 2i, A, and 2i + 1, E."""
    place = name.split(".")
    return 2 * int(place[1]) + place[2].startswith("mlp") if place[0] == "blocks" else None


# values
def documents_of(given: object, x_BTD: Tensor) -> Tensor:
    return torch.zeros(x_BTD.shape[:2], dtype=torch.int64) if given is None else numerics.tensor(given)  # type: ignore[arg-type]


def tensors_of(batch: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    tokens_BT = numerics.tensor(batch.tokens)
    return tokens_BT, numerics.tensor(batch.labels), documents_of(batch.documents, tokens_BT)


def step_of(trainer: Trainer, seen: frozenset[Observed], number: int, *, gradients: Mapping[str, Tensor] | None = None,
            loss: float | None = None, tokens: int = 0, lr: float = 0.0, grad_norm: float = 0.0,
            clip_coef: float = 1.0) -> Step:
    names = {id(each): name for name, each in trainer.model.named_parameters()}
    state = {f"{names[id(each)]}/{entry}": held for each, entries in trainer.optimizer.state.items()
             for entry, held in entries.items()}
    found = {"gradients": gradients or {}, "weights": dict(trainer.model.named_parameters()), "optimizer": state,
             "rng": {"data": trainer.data.get_state(), "torch": torch.get_rng_state()}}
    told = {what: numerics.arrays(each) for what, each in found.items() if what in seen}
    return Step(number=number, losses={} if loss is None else {"lm": loss, "total": loss}, tokens=tokens, lr=lr,
                grad_norm=grad_norm, clip_coef=clip_coef, **told)
