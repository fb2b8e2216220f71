"""Mutants of `checks.compile.compiled_context_parallel`."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel.collectives import Group
from contracts.stacks.reference.parallel.context_parallel import ContextParallel


class _WaitsWithin(ContextParallel):
    def __init__(self, *, group: Group) -> None:
        super().__init__(group=group)
        del self.taken_over, self.handed_on  # those of the class, which the compiler looks into


@mutant(of="COMP-06g", case="cp2-recurrence", says="graphs were compiled on rank")
class BreaksWithinTheMessages(Spread):
    """The compiler traces the code that sends and receives, so one rank has a break there that the other has not."""

    exchange = {"context_parallel": _WaitsWithin}
