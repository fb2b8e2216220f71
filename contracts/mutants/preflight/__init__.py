"""Mutants of PREF, under the file names of `contracts/checks/preflight`."""

from contracts.mutants.preflight import (  # isort: skip
    node,
    rank_map,
    measured_fabric,
    unreadable_captures,
)

__all__ = [
    "measured_fabric",
    "node",
    "rank_map",
    "unreadable_captures",
]
