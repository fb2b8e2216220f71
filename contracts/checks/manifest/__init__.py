"""MANI: the states of a detached run, and triage: where to look first."""

from contracts.checks.manifest import (  # isort: skip
    run_states,  # a detached run's states, and what a re-run reuses
    triage,  # facts of a run that is stuck, failed or slow → where to look first
)

__all__ = [
    "run_states",
    "triage",
]
