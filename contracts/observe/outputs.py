"""An output of a module that a device sums up: what its calls have in common is made in the first."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contracts.observe.device import Batched, Plan
from contracts.observe.sketch import BUCKETS
from contracts.observe.trace import Writer


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a module returned in a call that was summed up.

    Args:
        name: of the module.
        kind: what an output has in common with it that is summed up by the same launch.
        line: the part of its line between the numbers of the step and of the call.
    """

    name: str
    kind: tuple[Any, ...]
    by: Batched | Plan
    line: str

    def like(self, output: Any, tokens: Sequence[int]) -> bool:
        """Whether another output is summed up as this one, and nothing has to be made for it."""
        return type(output) is Tensor and self.kind == (tokens, *kind(output)) and output.is_contiguous()

    @property
    def at_once(self) -> bool:
        """Whether its launch runs no operator of torch."""
        return isinstance(self.by, Batched) and self.by.device.has_room(self.by.size)

    def launch(self, output: Tensor, rows: Tensor, numbers: tuple[int, int, int], writer: Writer) -> Callable[[], None]:
        """A function that writes its line after the device was read; `numbers` are of its step, call and microbatch."""
        step, call, microbatch = numbers
        read = self._read(output, rows)

        def write() -> None:
            found, squares, bits = read()
            finite = math.isfinite(squares)
            number, told = (writer.sketch(found), squares) if finite else (None, f'"{squares}"')
            writer.lines([
                f'{{"e":"forward","step":{step},{self.line},"call":{call},"microbatch":{microbatch},"bits":'
                f'"{bits}","squares":{told},"sketch":{"null" if number is None else number}}}'
            ])  # fmt: skip

        return write

    def _read(self, output: Tensor, rows: Tensor) -> Callable[[], tuple[Any, float, str]]:
        """Launch it; what reads its sketch, its squares and its fingerprint: a batch, which has its rows in another
        order on another layout, has none."""
        if isinstance(self.by, Plan):
            sums = self.by.launch([output.data_ptr()])
            return lambda: (sums.sketches[0], sums.squares[0], sums.bits[0])
        place, device = self.by.launch(output, rows), self.by.device

        def read() -> tuple[Any, float, str]:
            found = device.found(place).numpy()
            return found[:BUCKETS], float(found[BUCKETS:].sum()), ""

        return read


def kind(output: Tensor) -> tuple[Any, ...]:
    """The properties that distinguish outputs; of another kind if it is no tensor of numbers in rows and columns."""
    if output.layout is not torch.strided or output.is_nested or output.is_quantized or output.is_meta:
        return ()
    return output.shape, output.dtype, output.device


def made(name: str, output: Tensor, by: Batched | Plan, tokens: Sequence[int]) -> Output:
    line = {"shape": list(output.shape), "dtype": str(output.dtype).removeprefix("torch."), "part": "",
            "partial": False, "name": name, "batched": isinstance(by, Batched)}  # fmt: skip
    return Output(name=name, kind=(tokens, *kind(output)), by=by,
                  line=json.dumps(line, separators=(",", ":"))[1:-1])  # fmt: skip
