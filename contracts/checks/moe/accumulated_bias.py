"""The selection bias under gradient accumulation: one move per optimizer step."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.training_run import LETTERS, batches, drawn_weights, run, table
from contracts.contract import contract
from contracts.spec.recipe import Moe
from contracts.spec.tolerance import FLOAT64
from contracts.spec.training import Training

BIASED = replace(
    LETTERS,
    name="letters-biased",
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25),
)
"""Layers 1 and 5 route."""


@contract(
    "MOE-06b", float32=True, asks=("built", "train"), cases={"one": (1,), "three": (3,), "five": (5,)}, source="F18"
)
def the_selection_bias_moves_once_a_step(stack: Training, microbatches: int) -> None:
    """Every router's selection bias moves by its rate once per optimizer step: up for experts with fewer assignments in
    the whole step than the mean, down for experts with more.

    The check runs two steps with two routed layers. An update per microbatch moves the bias once for each microbatch,
    by a part of the counts. A bias that one layer's flag leaves out stays zero forever.
    """
    import torch

    weights = drawn_weights(table(stack, BIASED))
    names = sorted(name for name in stack.built(BIASED, "nemo_native").buffers if name.endswith("bias"))
    assert len(names) == 2, f"the routers of layers 1 and 5 have a selection bias; found {names}"
    trained = run(stack, BIASED, batches(2), "buffers", weights=weights, microbatches=microbatches)
    expected = {name: torch.zeros(14, dtype=torch.float64) for name in names}
    for step in trained.steps:
        seen = instruments.numerics.tensors(step.seen)
        for name, layer in zip(names, (1, 5), strict=True):
            counts = seen.get(f"layers.{layer}.counts")
            assert counts is not None, f"step {step.number} counted nothing in layer {layer}"
            assert int(counts.sum()) == 195, (
                f"layer {layer} counted {int(counts.sum())} assignments, expected 5 · 13 · 3"
            )
            expected[name] += 0.25 * torch.sign(195 / 14 - counts.double())
            words = instruments.numerics.difference(
                f"{name} after step {step.number}", step.buffers[name], expected[name], FLOAT64
            )
            assert not words, words
