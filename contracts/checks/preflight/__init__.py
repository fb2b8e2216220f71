"""PREF: the node before a launch: fabric, devices, memory, NUMA."""

from contracts.checks.preflight import (  # isort: skip
    node,  # the node: fabric, devices, memory, NUMA
    rank_map,  # ranks → devices and NICs, as the hosts have them
    measured_fabric,  # what the ranks measure between them, and the devices that they see
    unreadable_captures,  # tools that are absent, captures that are cut
)

__all__ = [
    "measured_fabric",
    "node",
    "rank_map",
    "unreadable_captures",
]
