"""Tensors of one kind that a device sums up in one launch in each step: what their lines have in common is made once.

This is for plain tensors, each held whole or as one part; `Recorder._tensor` does any other one by one.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from contracts.observe import device
from contracts.observe.device import Asked, Device, Plan, Sums, sums_up
from contracts.observe.placement import Held
from contracts.observe.trace import Writer

NOTHING = torch.empty(0)
Shown = Sequence[tuple[str, Tensor, Tensor]]
"""The name of each parameter, the parameter, and what is shown of it: its gradient, its state or itself."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One launch.

    Args:
        signature: of the tensors that it is for.
        beginnings: what their lines begin with, as JSON without its end.
        held: their names and where they lie, without their values.
        sketched: whether each has a sketch.
    """

    signature: list[tuple[int, torch.dtype, torch.Size, torch.device]]
    plan: Plan
    held: tuple[tuple[str, Held], ...]
    beginnings: tuple[str, ...]
    sketched: tuple[bool, ...]

    def fits(self, shown: Shown) -> bool:
        """Whether it is for these tensors."""
        if len(shown) != len(self.signature):
            return False
        for (number, dtype, shape, place), (_, parameter, tensor) in zip(self.signature, shown, strict=True):
            if (
                type(tensor) not in _PLAIN or id(parameter) != number or tensor.dtype is not dtype
                or tensor.shape != shape or tensor.device != place or not tensor.is_contiguous()
            ):  # fmt: skip
                return False
        return True

    def lines(self, step: int) -> Iterator[dict[str, Any]]:
        for each in self.beginnings:
            line = json.loads(each + "}") | {"step": step}
            del line["e"]
            yield line

    def launch(self, shown: Shown) -> Sums:
        return self.plan.launch([tensor.data_ptr() for _, _, tensor in shown])

    def bits(self, sums: Sums) -> dict[tuple[str, str], str]:
        """The fingerprints, by name and dtype."""
        dtype = str(self.plan.dtype).removeprefix("torch.")
        return {(name, dtype): bits for (name, _), bits in zip(self.held, sums.bits, strict=True)}

    def write(self, writer: Writer, step: int, sums: Sums) -> bool:
        """Write the lines, and the sketches; whether that can be done, as where every number is finite."""
        if not all(map(math.isfinite, sums.squares)):
            return False
        first = writer.sketch(sums.sketches) if sums.sketched is not None else 0
        if first is None:
            return False
        number, lines = first, []
        for begin, bits, squares, has in zip(self.beginnings, sums.bits, sums.squares, self.sketched, strict=True):
            place = number if has else "null"
            number += has
            lines.append(f'{begin},"step":{step},"bits":"{bits}","squares":{squares!r},"sketch":{place}}}')
        writer.lines(lines)
        return True


_PLAIN = frozenset((Tensor, nn.Parameter))


def signature(shown: Shown) -> list[Any] | None:
    """The properties that distinguish tensors from another step's; None if they are none that a phase is for."""
    found = []
    for _, parameter, tensor in shown:
        if type(tensor) not in _PLAIN or not tensor.is_contiguous():
            return None
        found.append((id(parameter), tensor.dtype, tensor.shape, tensor.device))
    one = found[0] if found else None
    same = one is not None and all(each[1] == one[1] and each[3] == one[3] for each in found)
    return found if same and device.here(shown[0][2]) else None


def made(
    there: Device, kind: str, of: list[Any], parts: Sequence[list[tuple[str, Held]]], sketched: bool,
    more: Mapping[str, Any],
) -> Phase | None:  # fmt: skip
    """The phase for such tensors; None if one of them is held in several parts, or in one that nobody can place."""
    if not all(len(each) == 1 and each[0][1].pieces and sums_up(each[0][1].local, each[0][1].pieces, batched=False)
               for each in parts):  # fmt: skip
        return None
    held = [each[0] for each in parts]
    asked = [Asked(pieces=mine.pieces or (), wants_sketch=sketched and mine.first) for _, mine in held]
    begins = [json.dumps({"e": kind, "shape": list(mine.shape), "dtype": str(mine.local.dtype).removeprefix("torch."),
                          "part": mine.part, "partial": mine.partial, "name": name, **more},
                         separators=(",", ":"))[:-1] for name, mine in held]  # fmt: skip
    return Phase(
        signature=of, plan=Plan(there, held[0][1].local.dtype, asked),
        held=tuple((name, replace(mine, local=NOTHING)) for name, mine in held),
        beginnings=tuple(begins), sketched=tuple(each.wants_sketch for each in asked),
    )  # fmt: skip
