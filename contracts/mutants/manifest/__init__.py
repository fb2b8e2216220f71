"""Mutants of MANI, under the file names of `contracts/checks/manifest`."""

from contracts.mutants.manifest import (  # isort: skip
    run_states,
    triage,
)

__all__ = [
    "run_states",
    "triage",
]
