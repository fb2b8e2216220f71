"""The node a run needs: its fabric, its devices, its host settings (PREF).

A node is captured once, as text, and judged from the text: what was seen can be kept in a receipt and judged again.
`contracts/instruments/node.py` captures the node it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.spec.errors import Refusals
from contracts.spec.party import Party


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason not to launch: the promise it breaks, what was found where, what is wrong, what to do.

    A tool that is absent, or printed something that is not its format, is a finding too: it is never a pass.
    """

    promise: str
    field: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.promise} {self.field} = {self.value}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class NodeCapture:
    """What one node printed, before anybody read it. None where a tool or file is absent, failed or did not answer.

    Args:
        host: name of the node, as its ranks report it.
        topology: standard output of `nvidia-smi topo -m`.
        devices: standard output of `nvidia-smi -L`.
        memory: standard output of `nvidia-smi --query-gpu=index,memory.total --format=csv,noheader,nounits` (MiB).
        numa_balancing: content of `/proc/sys/kernel/numa_balancing`.
        environment: CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES, where they are set. `nvidia-smi` ignores the
            first; a process does not.
        failures: name of a field that is None → why, in the words of the tool.
    """

    host: str = "localhost"
    topology: str | None = None
    devices: str | None = None
    memory: str | None = None
    numa_balancing: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run needs of every node.

    Args:
        gpus: ranks of a node, one GPU each.
        link: what each GPU–GPU cell must read. An eight-way Hopper node has 18 NVLinks a GPU into its switches.
        hbm_gb: memory of one GPU the recipe was planned for, in the decimal gigabytes of a data sheet; 0 asks for
            none. A card shows more than its name: an H200 of 141 GB has 143771 MiB, which are 150.8 GB.
    """

    gpus: int = 8
    link: str = "NV18"
    hbm_gb: int = 0

    def __post_init__(self) -> None:
        found = Refusals()
        found.unless(self.gpus >= 1, "gpus", self.gpus, "must be at least 1", "give the GPUs of one node")
        found.unless(self.hbm_gb >= 0, "hbm_gb", self.hbm_gb, "must not be negative", "give gigabytes, or 0")
        found.raise_any()


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Where a rank of the communicator stands.

    Args:
        rank: in the world, from 0.
        host: `NodeCapture.host` of its node.
        local_rank: within its node, from 0.
        device: number of its GPU in the host's map, not in a masked view of it.
        nic: RDMA device it sends through (`mlx5_3`); None when it is not known.
    """

    rank: int
    host: str
    local_rank: int
    device: int
    nic: str | None = None


class Machine(Party, Protocol):
    """What a stack's operator side says of a node, from what the node printed."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        """Every reason not to launch on this node, all at once; none when it is fit. Never an error: text that
        cannot be read is a reason."""
        ...

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        """Every reason why a communicator over several nodes disagrees with the maps of its hosts. Node by node, in
        the order of `nodes`, each local rank on the device of its number, each through one of the nearest NICs."""
        ...
