"""Stacks whose compiled steps leave files outside the run's scratch."""

from contracts.instruments.ranks import here
from contracts.law._bugs.broken import broken
from contracts.spec import Outcome
from contracts.stacks.reference.stack import Reference


@broken(Reference, "cache_env", "STOR-03c[two-ranks]: files in tmp, such as", bugs=("PRV-16",))
def sends_the_caches_alone(cache_env, self, storage, run):
    """Sets only the two cache variables, which do not move inductor's precompiled headers."""
    return {name: value for name, value in cache_env(self, storage, run).items() if value.startswith("/")}


@broken(Reference, "compile_under", "STOR-03c[two-ranks]: rank 1 left")
def tells_the_first_rank_alone(compile_under, self, call, environment, folder):
    """Only the launcher's own process gets the environment; the other ranks start with the shell's."""
    kept = {name: value for name, value in environment.items() if here().rank == 0 or "CACHE" not in name}
    return compile_under(self, call, kept, folder)


@broken(Reference, "compile_under", "STOR-03c[two-ranks]: and nothing is in the scratch folder of nam56r-0417")
def runs_what_it_called_compiled(compile_under, self, call, environment, folder):
    """Falls back to the eager block silently, and so writes no files."""
    return Outcome(worked=True, words="")
