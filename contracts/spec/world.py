"""Questions that every rank of a running world asks, and the values of their answers (tier dist).

All ranks ask the same question at once, in the environment that torchrun gives its workers, with the default process
group initialised. The stack may communicate. Every rank judges its own answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from contracts.spec.array import Array
from contracts.spec.kernel_selection import Kernel
from contracts.spec.party import Party
from contracts.spec.receipt import Provenance, Receipt
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees, Group, Layout


@dataclass(frozen=True, kw_only=True)
class LiveMesh:
    """The process groups of a mesh on one rank: before the mesh was built, while it existed, after it was closed.

    Args:
        groups: axis → members of this rank's group, by rank in the group; singletons included.
        sums: axis → sum of the contributions over that group.
        calls: members of each group that this rank created, in order, including groups it is not a member of.
        before: members of every process group of the process before the mesh was built.
        held: the same while the mesh existed.
        after: the same after the mesh was closed; None where the stack closes none before the process ends.
    """

    groups: Mapping[str, Group]
    sums: Mapping[str, int]
    calls: tuple[Group, ...]
    before: tuple[Group, ...]
    held: tuple[Group, ...]
    after: tuple[Group, ...] | None


@dataclass(frozen=True, kw_only=True)
class Upset:
    """A fault injected on one rank, which a measurement of the fabric must detect.

    Args:
        offset: added to the last element that this rank contributes, as a fabric that corrupts data would.
        late_s: seconds by which this rank joins late.
    """

    offset: float = 0.0
    late_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FabricPass:
    """One all-reduce measurement with a time limit, as one rank saw it. Bandwidths as in nccl-tests; GB is 10⁹ bytes.

    Args:
        ranks: members of the group that was measured.
        backend: nccl on GPUs, gloo on CPUs.
        message: bytes that each rank contributed.
        seconds: of each measured round, on its slowest rank; empty when the pass did not finish.
        algbw: `message` over the median round, in GB/s; 0 when the pass did not finish.
        busbw: bandwidth of the slowest link, in GB/s: `algbw · 2(n − 1)/n`.
        right: whether every element of the sum was exact on every rank.
        floor: bus bandwidth that the stack's owner requires of this fabric, in GB/s; None where none is set.
    """

    ranks: int
    backend: str
    message: int
    seconds: tuple[float, ...]
    algbw: float
    busbw: float
    right: bool
    floor: float | None = None


@dataclass(frozen=True, kw_only=True)
class SeenDevices:
    """What one rank sees of its node.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None where it is not set.
        names: the devices that the framework shows this rank, by index, each under a name that is unique on the node
            (the UUID of a GPU); empty on a node without devices.
        uses: index of the device that this rank uses, or would use if the node had any.
    """

    visible: str | None
    names: tuple[str, ...]
    uses: int


@dataclass(frozen=True, kw_only=True)
class Strain:
    """How one rank is made to differ from the others, so that a receipt of only one rank would be wrong.

    Args:
        held: extra bytes that this rank holds on its training device while it trains.
        late_s: extra seconds of this rank in the last step, after its last communication.
        lacks: a kernel that this rank cannot run, so that it falls back.
    """

    held: int = 0
    late_s: float = 0.0
    lacks: Kernel | None = None


@dataclass(frozen=True, kw_only=True)
class LeftReceipts:
    """The receipts in the folder of a run when all its ranks have ended.

    Args:
        own: the name of this rank's receipt.
        kept: name → receipt, of every rank.
        lines: what the ranks of this rank's node reported to its launcher, in the form of docs/receipts.md; empty if
            the stack reports nothing.
    """

    own: str
    kept: Mapping[str, Receipt]
    lines: tuple[str, ...] = ()


class World(Party, Protocol):
    """Questions inside a running world. Every rank asks them at once, and the stack may communicate."""

    def live_mesh(self, degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
        """Build the process groups of a mesh, sum `contribution` over each group of this rank, destroy the groups."""
        ...

    def reduced(self, degrees: Degrees, world: int, layout: Layout, tensor: Array, strided: bool) -> Array:
        """The sum of a tensor of each rank over this rank's tensor-parallel ranks, by the function with which the
        stack's layers sum. `strided` is whether its first axis is the fastest in memory, and not its last.
        """
        ...

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        """All-reduce `message` bytes over the world, `rounds` times, and measure it.

        No rank waits longer than `timeout_s` seconds for the others. A pass that does not finish has no `seconds` and
        is not `right`. `upset` is the fault of this rank.
        """
        ...

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        """Every reason against a launch on a fabric with this measurement; empty when it is fit."""
        ...

    def run_receipts(
        self, recipe: Recipe, degrees: Degrees, steps: int, folder: str, taken: Provenance, strain: Strain
    ) -> LeftReceipts:
        """Train `steps` steps over the world and write the receipts of the run into `folder`, which all ranks share.

        The measured window has all steps after the first. `taken` is the provenance of this rank, captured before it
        imported anything heavy; `strain` is how this rank differs. Returns when every rank has written its receipt.
        """
        ...

    def devices(self) -> SeenDevices:
        """The devices that this rank sees, and the one it uses."""
        ...
