"""The counterexamples, under the names of the checks they must fail."""

from contracts.mutants import environment, gate, groups, launch, names, pattern, recipe, topology

__all__ = ["environment", "gate", "groups", "launch", "names", "pattern", "recipe", "topology"]
