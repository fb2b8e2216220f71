"""PREF: the node before a launch: fabric, devices, memory, NUMA, rank map."""

from contracts.checks.preflight import (  # isort: skip
    node,  # the node: fabric, devices, memory, NUMA
    rank_map,  # ranks → devices and NICs, compared with the hosts' own maps
    measured_fabric,  # the bandwidth that the ranks measure
    unreadable_captures,  # absent tools, truncated captures
)

__all__ = [
    "measured_fabric",
    "node",
    "rank_map",
    "unreadable_captures",
]
