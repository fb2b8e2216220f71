"""Where torchtitan has what this adapter asks for: one function a symbol, which says since when it is as it is.

Main was tried as of b5bcd76 of 21 August 2026: its blocks answer, its trainer does not yet.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn


def rope(kind: Any, *, dim: int, length: int, theta: float) -> Any:
    """A configuration of rope; its table's length is `max_context_length` since August 2026, before `max_seq_len`."""
    names = {each.name for each in dataclasses.fields(kind.Config)}
    name = "max_context_length" if "max_context_length" in names else "max_seq_len"
    return kind.Config(**{"dim": dim, name: length, "theta": theta})


@functools.cache
def folded() -> bool:
    """Whether its layers take the tokens of all rows in one dimension: since "fold batch dim" (#4121, August 2026)."""
    from torchtitan.models.common.moe import TokenChoiceTopKRouter

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
    inner: Any = branch.get_submodule("inner_attention")
    own = type(inner).forward

    def by_rows(*qkv_TNH: Tensor, **named: Any) -> Tensor:
        out_BLNH: Tensor = own(inner, *(each.view(rows, length, *each.shape[1:]) for each in qkv_TNH), **named)
        return out_BLNH.flatten(0, 1)

    inner.forward = by_rows
    y_TD = branch(x_BTD.flatten(0, 1), None, torch.arange(length).repeat(rows))
    return y_TD.view_as(x_BTD)
