"""Where torchtitan has what this adapter asks for: one function a symbol, which says since when it is as it is.

Main was tried as of b5bcd76 of 21 August 2026, in one process.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def rope(kind: Any, *, dim: int, length: int, theta: float) -> Any:
    """A configuration of rope; its table's length is `max_context_length` since August 2026, before `max_seq_len`."""
    name = "max_context_length" if "max_context_length" in _fields(kind.Config) else "max_seq_len"
    return kind.Config(**{"dim": dim, name: length, "theta": theta})


@functools.cache
def folded() -> bool:
    """Whether its layers take the tokens of all rows in one dimension: since "fold batch dim" (#4121, August 2026)."""
    try:
        from torchtitan.models.common.moe import TokenChoiceTopKRouter
    except ModuleNotFoundError:  # 0.2.2, whose models lie elsewhere
        return False
    return "x_TD" in inspect.signature(TokenChoiceTopKRouter.forward).parameters


def of_rows(branch: nn.Module, x_BTD: Tensor, *, attends: bool) -> Tensor:
    """A branch of a layer on rows of tokens. Where rows are folded, each has its own positions, and attention sees one
    row at a time: its ScaledDotProductAttention takes (B, L, N, H), and a CPU has no backward pass of flex_attention,
    whose masks would keep them apart."""
    if not folded():
        y_BTD: Tensor = branch(x_BTD, None) if attends else branch(x_BTD)
        return y_BTD
    rows, length, _ = x_BTD.shape
    if not attends:
        y_TD: Tensor = branch(x_BTD.flatten(0, 1))
        return y_TD.view_as(x_BTD)
    _by_rows(branch.get_submodule("inner_attention"), lambda: length)
    y_TD = branch(x_BTD.flatten(0, 1), None, torch.arange(length).repeat(rows))
    return y_TD.view_as(x_BTD)


def data_loader() -> Any:
    """The base of its data loaders: in `components.data.loader` since August 2026, or `components.dataloader`."""
    try:
        return importlib.import_module("torchtitan.components.data.loader").BaseDataLoader
    except ModuleNotFoundError:
        return importlib.import_module("torchtitan.components.dataloader").BaseDataLoader


def batch_sizes(*, rows: int, total: int, length: int) -> dict[str, int]:
    """The fields of its training configuration that say how large a batch is: in tokens since August 2026, before in
    rows."""
    from torchtitan.config.configs import TrainingConfig

    if "seq_len" in _fields(TrainingConfig):
        return {"local_batch_size": rows, "global_batch_size": total, "seq_len": length}
    return {
        "num_tokens_per_microbatch_per_dp_rank": rows * length, "num_tokens_per_train_step": total * length,
        "max_context_length": length,
    }  # fmt: skip


def microbatches(*, rows: int, number: int) -> dict[str, int]:
    """How a pipeline cuts a batch: into so many microbatches since August 2026, before into those of so many rows."""
    from torchtitan.config.configs import ParallelismConfig

    if "num_pp_microbatches" in _fields(ParallelismConfig):
        return {"num_pp_microbatches": number}
    return {"pipeline_parallel_microbatch_size": rows}


def batch_of(tokens_BT: Tensor, labels_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch as its trainer reads it: with the place of each token in its row where rows are folded."""
    if not folded():
        return {"input": tokens_BT}, labels_BT
    rows, length = tokens_BT.shape
    return {"input": tokens_BT.flatten(), "positions": torch.arange(length).repeat(rows)}, labels_BT.flatten()


def rows_apart(model: nn.Module, length: Callable[[], int]) -> None:
    """Where rows are folded, give each attention of a model one row of so many tokens at a time; see `of_rows`."""
    if not folded():
        return
    for name, inner in model.named_modules():
        if name.endswith("inner_attention"):
            _by_rows(inner, length)


def _by_rows(inner: Any, length: Callable[[], int]) -> None:
    own = type(inner).forward

    def by_rows(*qkv_TNH: Tensor, **named: Any) -> Tensor:
        split = (each.view(-1, length(), *each.shape[1:]) for each in qkv_TNH)
        out_BLNH: Tensor = own(inner, *split, **named)
        return out_BLNH.flatten(0, 1)

    inner.forward = by_rows


def _fields(kind: Any) -> set[str]:
    return {each.name for each in dataclasses.fields(kind)}
