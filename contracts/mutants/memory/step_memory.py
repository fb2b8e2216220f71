"""Stacks that hold more than they planned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.devices import StepMemory
from contracts.spec.recipe import Mode, Recipe
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.blocks.common import Output, Packing
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import StepResult, Trainer


class _Spare(Trainer):
    def next(self, wanted: bool = False) -> StepResult:
        self.kept: Any = [each.detach().clone() for each in self.model.parameters()]
        return super().next(wanted)


@mutant(of="MEM-01f", case="float32", says="bytes are held, predicted")
@mutant(of="MEM-01g", case="float32", says="bytes are held, predicted")
class KeepsMastersTwice(Reference):
    """A second float32 copy of every weight is kept, which the budget does not count."""

    def trainer(self) -> type[Trainer]:
        return _Spare


class _Log(Trainer):
    def __init__(self, *args: Any, **named: Any) -> None:
        self.log: list[Tensor] = []
        super().__init__(*args, **named)

    def next(self, wanted: bool = False) -> StepResult:
        done = super().next(wanted)
        self.log += [each.grad.clone() for each in self.model.layers.parameters() if each.grad is not None][:4]
        return done


@mutant(of="MEM-01f", case="bfloat16", says="bytes more than step")
@mutant(of="MEM-01g", case="bfloat16", says="bytes more than step")
class LogsTensors(Reference):
    """A log keeps tensors instead of numbers, and grows at every step."""

    def trainer(self) -> type[Trainer]:
        return _Log


@mutant(of="MEM-01i", case="mlp", says="1 of 2 steps are told with recompute none")
@mutant(of="MEM-01f", case="float32", says="2 of 3 steps are told")
class TellsOfNoFirstStep(Reference):
    """The first step is a warm-up, and its memory is not told."""

    def step_memory(self, recipe: Recipe, mode: Mode, device: str, steps: int) -> tuple[StepMemory, ...]:
        return super().step_memory(recipe, mode, device, steps)[1:]


class _FindsAttention(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        found = isinstance(layer.mixer, Attention)
        return super().run(layer, x, pack) if found else layer(x, pack)


@mutant(of="MEM-01i", case="mamba", says="bytes on top of its state with recompute", bugs=("ACK-07",))
@mutant(of="MEM-01i", case="experts", says="bytes on top of its state with recompute", bugs=("ACK-07",))
class RecomputesOneClassAlone(Exchanged):
    """Layers are wrapped by mixer class, and the list of classes is that of another model."""

    exchange = {"model": _FindsAttention}


class _KeepsWhatItGave(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        def looked_at(x: Tensor, pack: Packing) -> Output:
            with torch.autograd.graph.save_on_cpu():
                return layer(x, pack)  # type: ignore[no-any-return]

        return looked_at(x, pack) if self.recompute else super().run(layer, x, pack)


@mutant(of="MEM-01i", case="attention", says="bytes on top of its state with recompute")
class MovesInsteadOfRecomputing(Exchanged):
    """Activations are offloaded to the host and counted as gone, but on a CPU run the host is the device."""

    exchange = {"model": _KeepsWhatItGave}


class _Always(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        return checkpoint(layer, x, pack, use_reentrant=False)  # type: ignore[no-any-return]


@mutant(of="MEM-01i", case="recurrent", says="bytes on top of its state with recompute")
class RecomputesUnasked(Exchanged):
    """Everything is recomputed whatever the recipe says, and each step takes a third longer."""

    exchange = {"model": _Always}
