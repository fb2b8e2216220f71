"""The model and optimizer table of a recipe, read off the Megatron model that one rank builds."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from contracts.spec import parameters
from contracts.spec import pattern as patterns
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees
from contracts.spec.training import Built, BuiltLayer, Parameter, Role
from contracts.stacks.megatron.hybrid_model import chunks_of
from contracts.stacks.megatron.mamba_kernels import kernels
from contracts.stacks.megatron.model import Plan, config_of, planned
from contracts.stacks.megatron.optimizer import inner, optimizer_of, wrapped
from contracts.stacks.megatron.process_groups import parallel
from contracts.stacks.megatron.rank_tensors import RankTensor, is_trained, rank_tensors_of
from contracts.stacks.megatron.shims import on_the_host
from contracts.stacks.megatron.weight_mapping import Piece, ours_of, theirs_of

MOMENTS = ("exp_avg", "exp_avg_sq")
LARGEST = 50_000_000  # most parameters for which the model is built


@functools.lru_cache(maxsize=32)
def built(recipe: Recipe) -> Built:
    """The model of a recipe and its optimizer's table, read off a model that one rank builds.

    Raises:
        NotOffered: for a model with more than `LARGEST` parameters.
    """
    plan = planned(recipe, Degrees(), torch.float32, families="AEM")
    elements = parameters.count(recipe).total
    if elements > LARGEST:
        raise NotOffered(f"Megatron-Core: a model without memory is not built on a CPU, and this one has {elements}")
    with on_the_host(besides=kernels(plan.letters)), parallel(Degrees(), 1):
        chunks = chunks_of(plan, config_of(plan))
        held = [each for chunk in chunks for each in rank_tensors_of(chunk, plan.table())]
        decays = _decays(optimizer_of(plan, [wrapped(chunk.config, chunk) for chunk in chunks]), recipe)
        rows = _rows(plan, held, decays)
        buffers = {
            name: tuple(each.shape)
            for name, each in ours_of(plan.table(), {e.name: e.tensor for e in held if not is_trained(e)}).items()
        }
    features = frozenset({"untied_embeddings" if recipe.untied_embeddings else "tied_embeddings"})
    return Built(layers=_layers(plan, rows, buffers), parameters=rows, features=features, buffers=buffers)


def _decays(optimizer: Any, recipe: Recipe) -> dict[int, float]:
    """id of each parameter → the weight decay of its group."""
    return {
        id(each): float(group.get("wd_mult", 1.0)) * recipe.optim.weight_decay
        for torch_optimizer in inner(optimizer)
        for group in torch_optimizer.param_groups
        for each in group["params"]
    }


def _rows(plan: Plan, held: list[RankTensor], decays: Mapping[int, float]) -> tuple[Parameter, ...]:
    table = plan.table()
    ours = ours_of(table, {each.name: each.tensor.detach() for each in held if is_trained(each)})
    decay = {
        re.sub(r"(\.experts\.w\d)\.\d+$", r"\1", name): decays[id(each.tensor)]
        for each in held
        if is_trained(each)
        for name in table[each.name].ours
    }
    return tuple(
        Parameter(
            name=name,
            shape=tuple(each.shape),
            dtype="float32",
            compute="float32",
            role=_role(name),
            layer=int(name.split(".")[1]) if name.startswith("layers.") else None,
            optimizer="adamw",
            weight_decay=decay[name],
            state=dict.fromkeys(MOMENTS, "float32"),
        )
        for name, each in sorted(ours.items())
    )


def _role(name: str) -> Role:
    roles: tuple[tuple[str, Role], ...] = (
        ("embedding.", "embedding"), ("head.", "head"), ("norm.weight", "norm"), (".router.", "router"),
        (".experts.", "expert"), (".conv_", "conv"), (".A_log", "ssm"), ("mixer.D", "ssm"), (".dt_bias", "ssm"),
    )  # fmt: skip
    return next((role for part, role in roles if part in name), "matrix")


def _of_layer(names: Iterable[str], number: int) -> list[str]:
    return [name for name in names if name.startswith(f"layers.{number}.")]


def _layers(plan: Plan, rows: tuple[Parameter, ...], buffers: Iterable[str]) -> tuple[BuiltLayer, ...]:
    families = patterns.parse(plan.recipe.pattern, plan.recipe.depth)
    found = []
    for number, letter in enumerate(families.letters):
        own = [row for row in rows if row.layer == number]
        found.append(
            BuiltLayer(
                number=number, family=letter,
                features=_features(plan.recipe, [*(row.name for row in own), *_of_layer(buffers, number)]),
                parameters=sum(torch.Size(row.shape).numel() for row in own),
            )
        )  # fmt: skip
    return tuple(found)


def _features(recipe: Recipe, names: list[str]) -> frozenset[str]:
    """Features, found by the names of a layer's tensors."""
    told = " ".join(names)
    seen = {
        "mla": "wkv_a" in told, "gqa": "wk.weight" in told and recipe.kv_groups < recipe.heads,
        "qk_norm": "k_norm" in told, "rope": "wo.weight" in told, "moe": ".experts." in told,
        "shared_expert": ".shared." in told, "selection_bias": "router.bias" in told, "swiglu": "w3" in told,
        "relu2": "w1" in told and "w3" not in told, "mamba2": "A_log" in told,
    }  # fmt: skip
    return frozenset(name for name, holds in seen.items() if holds)


def whole_shapes(recipe: Recipe, table: Mapping[str, Piece]) -> dict[str, tuple[int, ...]]:
    """The shape of every full tensor by Megatron's name, from the shapes of ours."""
    ours = {row: torch.empty(shape, device="meta") for row, shape in whole_of(recipe).items()}
    return {name: tuple(each.shape) for name, each in theirs_of(table, ours).items()}


@functools.lru_cache(maxsize=32)
def whole_of(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Our names and full shapes, read off a model that one rank builds."""
    table = built(recipe)
    return {row.name: row.shape for row in table.parameters} | dict(table.buffers)
