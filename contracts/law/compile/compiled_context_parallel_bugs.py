"""Mutants of `checks.compile.compiled_context_parallel`."""

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.context_parallel import ContextParallel


@broken(ContextParallel, "__init__", "COMP-06g[cp2-recurrence]: graphs were compiled on rank")
def breaks_within_the_messages(init, self, *, group):
    """The compiler traces the code that sends and receives, so one rank has a break there that the other has not."""
    init(self, group=group)
    del self.taken_over, self.handed_on  # those of the class, which the compiler looks into
