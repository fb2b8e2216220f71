"""The model and optimizer table of a recipe, read off the Megatron model that one rank builds."""

import functools
import re
from collections.abc import Mapping
from typing import Any

import torch

from contracts.spec import Built, Degrees, NotOffered, Recipe, parameters
from contracts.stacks.kit import tables
from contracts.stacks.kit.links import Link
from contracts.stacks.megatron.hybrid_model import chunks_of
from contracts.stacks.megatron.mamba_kernels import kernels
from contracts.stacks.megatron.model import config_of, planned
from contracts.stacks.megatron.muon import rules_of
from contracts.stacks.megatron.optimizer import inner, optimizer_of, wrapped
from contracts.stacks.megatron.process_groups import parallel
from contracts.stacks.megatron.rank_tensors import is_trained, rank_tensors_of
from contracts.stacks.megatron.shims import running_on
from contracts.stacks.megatron.weight_mapping import ours_of, theirs_of

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
    with running_on(besides=kernels(plan.letters)), parallel(Degrees(), 1):
        chunks = chunks_of(plan, config_of(plan))
        held = [each for chunk in chunks for each in rank_tensors_of(chunk, plan.table())]
        optimizer = optimizer_of(plan, wrapped(plan, chunks[0].config, chunks))
        decays, rules = _decays(optimizer, recipe), rules_of(inner(optimizer))
        trained, others = [e for e in held if is_trained(e)], [e for e in held if not is_trained(e)]
        moved = {
            re.sub(r"(\.experts\.[bw]\d)\.\d+$", r"\1", name): id(each.tensor)
            for each in trained
            if id(each.tensor) in decays
            for name in plan.table()[each.name].ours
        }
        rows, buffers = (
            dict(sorted(ours_of(plan.table(), {e.name: e.tensor.detach() for e in of}).items()))
            for of in (trained, others)
        )
    by_muon = {name for name, tensor in moved.items() if rules[tensor] == "muon"}
    return tables.built(rows, buffers, {name: decays[tensor] for name, tensor in moved.items()}, by_muon)


def _decays(optimizer: Any, recipe: Recipe) -> dict[int, float]:
    """id of each parameter → the weight decay of its group."""
    return {
        id(each): float(group.get("wd_mult", 1.0)) * recipe.optim.weight_decay
        for torch_optimizer in inner(optimizer)
        for group in torch_optimizer.param_groups
        for each in group["params"]
    }


def whole_shapes(recipe: Recipe, table: Mapping[str, Link]) -> dict[str, tuple[int, ...]]:
    """The shape of every full tensor by Megatron's name, from the shapes of ours."""
    ours = {row: torch.empty(shape, device="meta") for row, shape in whole_of(recipe).items()}
    return {name: tuple(each.shape) for name, each in theirs_of(table, ours).items()}


@functools.lru_cache(maxsize=32)
def whole_of(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Our names and full shapes, read off a model that one rank builds."""
    table = built(recipe)
    return {row.name: row.shape for row in table.parameters} | dict(table.buffers)
