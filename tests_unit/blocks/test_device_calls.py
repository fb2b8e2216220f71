"""What the checks on devices ask."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from contracts.harness import parties
from contracts.law._support.device_calls import call_of, rerouted, routings
from contracts.law.compile.compiled_experts import HOST


def test_rerouting_a_drawn_batch_equals_drawing_it_with_that_routing() -> None:
    stack = parties.load("reference")
    first = call_of(stack, replace(HOST, spread="even"))
    assert HOST.recipe.moe is not None
    for spread in routings(HOST.recipe.moe, 64):
        drawn = call_of(stack, replace(HOST, spread=spread))
        assert rerouted(first, spread) == drawn
        assert (drawn.x == first.x) == (spread == "even")
