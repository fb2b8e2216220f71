"""Configurations of up to April 2026, in which one template stands for all layers."""

import copy
import dataclasses
import importlib.util
import json
from typing import Any

import pytest

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the places of layers are found beside torch"),
]


@dataclasses.dataclass
class Part:
    dim: int = 0
    hidden_dim: int = 0
    built: int = dataclasses.field(init=False, repr=False, compare=False)


@dataclasses.dataclass
class Whole:
    dim: int = 0
    rope: Part = dataclasses.field(default_factory=Part)
    moe: Part | None = None


def test_a_value_goes_where_its_longest_name_is_and_no_field_of_another_is_changed() -> None:
    from contracts.stacks.torchtitan.template import filled

    made: Any = filled(Whole(moe=Part()), {("dim",): 1, ("rope.dim",): 2, ("inter_dim", "moe.hidden_dim"): 3})
    assert (made.dim, made.rope, made.moe) == (1, Part(dim=2), Part(dim=1, hidden_dim=3))


def test_a_value_without_a_field_is_reported_with_all_of_its_names() -> None:
    from contracts.stacks.kit.versions import Misfit
    from contracts.stacks.torchtitan.template import filled

    with pytest.raises(Misfit, match=r"^Whole has no field moe.hidden_dim or moe_inter_dim, n_heads$"):
        filled(Whole(), {("dim",): 1, ("moe.hidden_dim", "moe_inter_dim"): 3, ("n_heads",): 4})


def test_a_shared_expert_is_as_wide_as_it_is_declared_and_its_number_is_a_number() -> None:
    from contracts.stacks.torchtitan.template import Share

    share = Share(2)
    share.width = 24
    assert (16 * share, 16 * copy.deepcopy(share), share > 0, json.dumps(share)) == (24, 24, True, "2")
