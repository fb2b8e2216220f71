"""Trainers in which two features are right one by one, and lose something together."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.training.trainer import Trainer

Position = Mapping[str, int]


class _RoundsMomentum(Trainer):
    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        if self.recipe.optim.rule == "muon" and self.recipe.dtype == "bf16":
            state = {
                name: each.bfloat16().to(each.dtype) if "momentum" in name else each for name, each in state.items()
            }
        super().load(state, position)


@mutant(
    of="CKPT-01k",
    case="gqa-softmax-bf16-muon-linear-mtp-relu2-accumulated-packed-AEMR-recomputed",
    says="after 1 loads, step 2: optimizer: ",
)
class RoundsTheMomentumOfMuonUnderBfloat16(Trained):
    """Muon multiplies in bfloat16, and its state is loaded in the dtype of the activations where that is bfloat16."""

    trains = _RoundsMomentum


class _FirstScale(Trainer):
    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        if self.recipe.fp8 is not None and not self.recipe.untied_embeddings:
            for name, each in self.model.named_buffers():
                if name.endswith(".scale"):
                    each.fill_(1.0)


@mutant(
    of="CKPT-01k",
    case="gqa-top-1-fp8-adamw-linear-tied-swiglu-accumulated-own-data-AE-kept",
    says="after 1 loads, step 2: losses is",
)
class MakesScalesAnewWhereItTies(Trained):
    """A tie is made again behind a load, by a function that also sets up FP8: scales are those of a fresh model."""

    trains = _FirstScale
