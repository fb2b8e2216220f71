"""How much of a step this process computes: the multiply-adds of its matrix products, counted as they are dispatched.

Only what this process runs eagerly is seen: not a compiled graph, and not a stack in another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode  # as torch's own counter uses it, from 2.4 to 2.13
from torch.utils.flop_counter import flop_registry


@dataclass
class Work:
    """Floating-point operations of matrix products."""

    operations: int = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Count inside. Of a DTensor the product of this rank's parts counts, not that of the whole tensors."""
    work = Work()
    with _Counts(work):
        yield work


class _Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it comes back here with its local tensors
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.work.operations += int(formula(*args, **(kwargs or {}), out_val=out))
        return out
