"""Stacks that hold more than they said, and launches whose allocator is another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from contracts.contract import mutant
from contracts.spec.devices import AllocatorSeen
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.trainer import Done, Trainer


class _Spare(Trainer):
    def next(self, wanted: bool = False) -> Done:
        self.kept: Any = [each.detach().clone() for each in self.model.parameters()]
        return super().next(wanted)


@mutant(of="MEM-01f", case="float32", says="bytes are held, predicted")
@mutant(of="MEM-01g", case="float32", says="bytes are held, predicted")
class KeepsMastersTwice(Reference):
    """A second float32 copy of every weight, which the budget does not know."""

    def trainer(self) -> type[Trainer]:
        return _Spare


class _Log(Trainer):
    def __init__(self, *args: Any, **named: Any) -> None:
        self.log: list[Tensor] = []
        super().__init__(*args, **named)

    def next(self, wanted: bool = False) -> Done:
        done = super().next(wanted)
        self.log += [each.grad.clone() for each in self.model.layers.parameters() if each.grad is not None][:4]
        return done


@mutant(of="MEM-01f", case="bfloat16", says="bytes more than step")
@mutant(of="MEM-01g", case="bfloat16", says="bytes more than step")
class LogsTensors(Reference):
    """A log that keeps tensors and not their numbers grows by some at every step."""

    def trainer(self) -> type[Trainer]:
        return _Log


@mutant(of="ENV-03c", case="fsdp2", says="segments are expandable under PYTORCH_ALLOC_CONF=''")
class SetsItTooLate(Reference):
    """The setting is made where the ranks no longer read it."""

    def allocator_seen(self, environment: Mapping[str, str], device: str) -> AllocatorSeen:
        late = {name: value for name, value in environment.items() if "ALLOC_CONF" not in name}
        return super().allocator_seen(late, device)
