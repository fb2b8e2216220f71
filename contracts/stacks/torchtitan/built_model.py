"""The model that torchtitan builds from a recipe, read off the model on the meta device."""

from __future__ import annotations

import math

import torch

from contracts.spec.recipe import Recipe
from contracts.spec.training import Built, BuiltLayer, Parameter
from contracts.stacks.torchtitan import weight_mapping
from contracts.stacks.torchtitan.model import config_of, declined


def built(recipe: Recipe) -> Built:
    """Parameters under their canonical names; one layer of torchtitan is two of ours.

    Raises:
        NotOffered: for a recipe without a torchtitan model.
    """
    declined(recipe)
    with torch.device("meta"):
        model = config_of(recipe).build()
    whole = weight_mapping.to_canonical(dict(model.named_parameters()), recipe)
    rows = tuple(_row(name, tuple(each.shape), recipe) for name, each in whole.items())
    biases = {name: each for name, each in model.named_buffers() if name.endswith("expert_bias_E")}
    held = weight_mapping.to_canonical(biases, recipe)
    return Built(
        layers=tuple(_layer(number, rows, held, recipe) for number in range(recipe.depth)),
        parameters=rows,
        features=frozenset({"untied_embeddings"}),
        buffers={name: tuple(each.shape) for name, each in held.items()},
    )


def _row(name: str, shape: tuple[int, ...], recipe: Recipe) -> Parameter:
    role = weight_mapping.role_of(name)
    return Parameter(
        name=name,
        shape=shape,
        dtype="float32",
        compute="float32",
        role=role,
        layer=int(name.split(".")[1]) if name.startswith("layers.") else None,
        optimizer="adamw",
        weight_decay=0.0 if role == "norm" else recipe.optim.weight_decay,
        state={"exp_avg": "float32", "exp_avg_sq": "float32"},
    )


def _layer(number: int, rows: tuple[Parameter, ...], buffers: object, recipe: Recipe) -> BuiltLayer:
    """One of our layers, read off the built model."""
    begin = f"layers.{number}."
    names = {row.name.removeprefix(f"{begin}mixer.") for row in rows if row.name.startswith(begin)}
    found = {
        "rope": number % 2 == 0,
        "mla": "wkv_a.weight" in names,
        "gqa": "wq.weight" in names and recipe.kv_groups < recipe.heads,
        "qk_norm": "k_norm.weight" in names,
        "moe": "router.weight" in names,
        "shared_expert": "shared.w1.weight" in names,
        "selection_bias": f"{begin}mixer.router.bias" in buffers,  # type: ignore[operator]
        "swiglu": "experts.w3" in names,
    }
    return BuiltLayer(
        number=number,
        family="AE"[number % 2],
        features=frozenset(name for name, there in found.items() if there),
        parameters=sum(math.prod(row.shape) for row in rows if row.name.startswith(begin)),
    )
