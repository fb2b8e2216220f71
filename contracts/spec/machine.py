"""The node that a run needs: its fabric, its devices, its host settings (PREF).

A node is captured once, as text, and judged from the text. So a receipt can keep the capture, and it can be judged
again. `contracts/instruments/node.py` captures the node on which it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.spec.errors import Refusals
from contracts.spec.party import Party


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason not to launch: the contract it violates, the field, its value, the problem, the remedy.

    `promise` is the contract's id. A tool that is absent or prints another format is also a finding, never a pass.
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
    """What the tools of one node printed, unparsed. None where a tool or file is absent, failed or did not answer.

    Args:
        host: name of the node, as its ranks report it.
        topology: standard output of `nvidia-smi topo -m`.
        devices: standard output of `nvidia-smi -L`.
        memory: standard output of `nvidia-smi --query-gpu=index,memory.total --format=csv,noheader,nounits` (MiB).
        numa_balancing: content of `/proc/sys/kernel/numa_balancing`.
        environment: CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES, where they are set. `nvidia-smi` ignores the
            first; a process does not.
        failures: name of a field that is None → why, in the tool's words.
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
        link: the required text of each GPU–GPU cell. On an eight-way Hopper node each GPU has 18 NVLinks (NV18).
        hbm_gb: memory of the GPU that the recipe was planned for, in the decimal gigabytes of a data sheet; 0 for no
            requirement. A card reports more than its name says: an H200 of 141 GB has 143771 MiB, which are 150.8 GB.
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
    """Where a rank of the communicator runs.

    Args:
        rank: in the world, from 0.
        host: `NodeCapture.host` of its node.
        local_rank: within its node, from 0.
        device: index of its GPU on the host, not under CUDA_VISIBLE_DEVICES.
        nic: the RDMA device it uses (`mlx5_3`); None when unknown.
    """

    rank: int
    host: str
    local_rank: int
    device: int
    nic: str | None = None


class Machine(Party, Protocol):
    """Preflight of a node, judged from the output of its tools."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        """Every reason not to launch on this node; empty when it is fit.

        It never raises for the capture: text that cannot be parsed is a finding.
        """
        ...

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        """Every way in which a communicator over several nodes disagrees with the topology of its hosts.

        Ranks are numbered node by node, in the order of `nodes`. Each local rank has the device of its own index and
        one of the NICs nearest to that device.
        """
        ...
