"""Symbols of torchtitan that moved: either form is found, and folded rows stay apart."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="rows are tensors"),
]


@pytest.mark.parametrize("name", ["max_seq_len", "max_context_length"])
def test_the_length_of_a_table_of_rope_has_either_name(name: str) -> None:
    from contracts.stacks.torchtitan import symbols

    class Rope:
        Config = dataclasses.make_dataclass("Config", [("dim", int), (name, int), ("theta", float)])

    made = symbols.rope(Rope, dim=8, length=32, theta=10.0)
    assert dataclasses.asdict(made) == {"dim": 8, name: 32, "theta": 10.0}


def test_a_table_that_takes_neither_is_what_has_moved() -> None:
    from contracts.stacks.torchtitan import symbols

    class Rope:
        Config = dataclasses.make_dataclass("Config", [("dim", int), ("theta", float)])

    with pytest.raises(TypeError, match="max_seq_len"):
        symbols.rope(Rope, dim=8, length=32, theta=10.0)


@pytest.mark.parametrize("folded", [True, False])
def test_rows_see_no_other_row_in_either_layout(folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token becomes the sum of its own row up to it, times its position, whichever shape the layers take."""
    import torch
    from torch import Tensor, nn

    from contracts.stacks.torchtitan import symbols

    class Inner(nn.Module):
        def forward(self, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, *, attention_masks: Any) -> Tensor:
            assert attention_masks is None
            return v_BLNH.cumsum(1)

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner_attention = Inner()

        def forward(self, x: Tensor, attention_masks: Any, positions: Tensor | None = None) -> Tensor:
            split = x.unflatten(-1, (2, -1))
            y = self.inner_attention(split, split, split, attention_masks=attention_masks).flatten(-2)
            return y * (torch.arange(x.shape[1])[:, None] if positions is None else positions[:, None])

    monkeypatch.setattr(symbols, "folded", lambda: folded)
    x_BTD = torch.arange(24.0).view(2, 3, 4)
    y_BTD = symbols.of_rows(Branch(), x_BTD, attends=True)
    assert torch.equal(y_BTD, x_BTD.cumsum(1) * torch.arange(3.0)[:, None])
    assert torch.equal(symbols.of_rows(nn.Identity(), x_BTD, attends=False), x_BTD)
