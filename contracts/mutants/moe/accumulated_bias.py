"""Mutants of `checks.moe.accumulated_bias`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.training.trainer import Batch, Trainer


class _EachMicrobatch(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        super().move_biases(out.seen)
        return out

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        pass


@mutant(of="MOE-06b", case="three", says="router.bias after step 1 differs")
class MovesTheBiasEachMicrobatch(Trained):
    """The update runs in the forward pass: one move for each microbatch, by a part of the counts."""

    trains = _EachMicrobatch


@mutant(of="MOE-06b", case="one", says="router.bias after step 1 differs", bugs=("EXB-01",))
class NeverMovesTheBias(Trained):
    """The hook that updates the bias is not registered for this model."""

    class trains(Trainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            pass


@mutant(of="MOE-06b", case="one", says="layers.5.mixer.router.bias after step 1 differs", bugs=("EXB-02",))
class ReturnsAfterTheFirstLayer(Trained):
    """`return` inside the loop over layers: only the first router's bias moves."""

    class trains(Trainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            first = {name: each for name, each in seen.items() if name == "layers.1.counts"}
            super().move_biases(
                first | {name: torch.ones_like(each) for name, each in seen.items() if name not in first}
            )


@mutant(of="MOE-06b", case="five", says="router.bias after step 1 differs")
class CountsTheLastMicrobatch(Trained):
    """Each microbatch overwrites the counter instead of adding to it."""

    class trains(Trainer):  # noqa: N801
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            out = super().accumulate(micro, counts)
            self.last = out.seen
            return out

        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            super().move_biases(self.last)

        last: Mapping[str, Tensor]
