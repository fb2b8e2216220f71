"""Megatron's Muon, which the package emerging_optimizers computes: how it becomes the law's, and what it moves."""

import dataclasses
import importlib
import importlib.util
from types import FunctionType
from typing import Any

import torch

from contracts.spec import NotOffered, Rule
from contracts.stacks.megatron.abilities import NO_MUON
from contracts.stacks.megatron.shims import Shim, mcore

_ITERATION = "emerging_optimizers.orthogonalized_optimizers.muon_utils"
LABEL = "; in float64 the iteration of emerging_optimizers, which asserts float32, has float64 for one name in its code"


def options(*, layer_wise: bool, gathers_ahead: bool) -> dict[str, Any]:
    """The options of the law's Muon, as far as this version has them: up to March 2026 it has coefficients of its own.

    Args:
        layer_wise: whether data-parallel ranks share its matrices out, as with --use-distributed-optimizer.
        gathers_ahead: whether they gather weights while the next forward pass runs.

    Raises:
        NotOffered: if the package is not installed.
    """
    if importlib.util.find_spec("emerging_optimizers") is None:
        raise NotOffered(f"Megatron-Core: {NO_MUON}")
    wanted = {
        "momentum": 0.95, "nesterov": True, "use_nesterov": True, "num_ns_steps": 5, "coefficient_type": "simple",
        "scale_mode": "spectral", "extra_scale_factor": 0.2, "fp32_matmul_prec": "highest", "tp_mode": "duplicated",
        "split_qkv": True,
    }  # fmt: skip
    known = {each.name for each in dataclasses.fields(mcore("optimizer").OptimizerConfig)}
    shared = {"use_distributed_optimizer": False, "use_layer_wise_distributed_optimizer": True,
              "overlap_param_gather": gathers_ahead}  # fmt: skip
    return (
        {"optimizer": "muon"}
        | (shared if layer_wise else {})
        | {f"muon_{n}": value for n, value in wanted.items() if f"muon_{n}" in known}
    )


def builder() -> Any:
    """What builds it: its builder of all optimizers since April 2026, before one of its own."""
    if importlib.util.find_spec("megatron.core.optimizer.emerging_optimizers") is not None:
        return mcore("optimizer").get_megatron_optimizer
    return mcore("optimizer.muon").get_megatron_muon_optimizer


def wrapped(config: Any, made: Any, modules: list[Any]) -> list[Any]:
    """Chunks in the wrapper of its training script, which lays buffers out for the layer-wise optimizer."""
    training = importlib.import_module("megatron.training.training")
    found: list[Any] = training.wrap_model_chunks_with_ddp(
        modules, config, made, use_layer_wise_distributed_optimizer=True,
        disable_bucketing_per_chunk=[number > 0 for number in range(len(modules))],
    )  # fmt: skip
    return found


def rules_of(optimizers: list[Any]) -> dict[int, Rule]:
    """id of each parameter → the rule that moves it."""
    return {
        id(tensor): "adamw" if isinstance(each, torch.optim.AdamW) else "muon"
        for each in optimizers
        for group in each.param_groups
        for tensor in group["params"]
    }


def wide() -> tuple[Shim, ...]:
    """The iteration in float64: its code, with one name for another."""
    own: FunctionType = importlib.import_module(_ITERATION).newton_schulz
    names = tuple("float64" if each == "float32" else each for each in own.__code__.co_names)
    other = FunctionType(own.__code__.replace(co_names=names), own.__globals__, own.__name__, own.__defaults__)
    other.__kwdefaults__ = own.__kwdefaults__
    return (Shim(at=f"{_ITERATION}:newton_schulz", put=other, why="runs in float64, which it refuses"),)
