"""Mutants of `checks.moe.accumulated_bias`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.model.blocks.moe import MoE, Routing
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
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


class _CountsInTheForwardPass(Trainer):
    """Counters fill in a hook of each router, which the backward pass runs again where layers are recomputed."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        found: dict[str, Tensor] = {}
        hooks = []
        for number, layer in self.model.layers.items():
            mixer = layer.mixer
            if isinstance(mixer, MoE):
                name = f"layers.{number}.counts"

                def add(_: nn.Module, __: object, out: Routing, name: str = name) -> None:
                    found[name] = found.get(name, 0) + out.counts_E

                hooks.append(mixer.router.register_forward_hook(add))
        out = super().accumulate(micro, counts)
        for hook in hooks:
            hook.remove()
        return out._replace(seen={**out.seen, **found})


@mutant(of="MOE-06b", case="recomputed", says="counted 390 assignments, expected 5 · 13 · 3", bugs=("EXB-07",))
class CountsAgainInTheBackwardPass(Trained):
    """A buffer of the router counts in its forward pass, and recomputation runs that pass twice."""

    trains = _CountsInTheForwardPass


class _HalvesBuffers(Trainer):
    def build(self) -> Model:
        model = super().build()
        for each in model.modules():
            for name, buffer in each.named_buffers(recurse=False):
                each.register_buffer(name, buffer.to(model.activations))
        return model


@mutant(of="MOE-06h", case="from-one", says="is held in bfloat16, expected float32", bugs=("EXB-05",))
class CastsBuffersToo(Trained):
    """`model.bfloat16()` casts the selection bias, and steps of 0.001 are lost."""

    trains = _HalvesBuffers


class _MovesInHalf(Trainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        for buffer in self.model.buffers():
            buffer.copy_(buffer.to(self.model.activations))


@mutant(of="MOE-06h", case="from-one", says="is 1 after step 1, expected", bugs=("EXB-05",))
@mutant(of="MOE-06h", case="from-minus-four", says="is -4 after step 1, expected")
class MovesBiasesInHalf(Trained):
    """Over-correction: the buffer is float32 again, but the wrapper computes its update in the parameters' dtype."""

    trains = _MovesInHalf
