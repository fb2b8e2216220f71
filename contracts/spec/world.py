"""A world that runs: what a stack is asked inside it, by each of its ranks, and the values of the answers (tier dist).

A question of this file is put on every rank of the world at once, under the environment that torchrun gives its workers
and with the default process group initialised; it may communicate. Every rank judges the answer that it got itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from contracts.spec.kernel_selection import Kernel
from contracts.spec.party import Party
from contracts.spec.receipt import Provenance, Receipt
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees, Group, Layout


@dataclass(frozen=True, kw_only=True)
class LiveMesh:
    """The process groups of a mesh as one rank held them, from before they were made until after they were gone.

    Args:
        groups: axis → members of the group that this rank has there, by rank in the group; singletons included.
        sums: axis → sum of the contributions of those who met in that group.
        calls: members of each group that this rank made by a call, in order, those it is no member of included.
        before: members of every process group that the process held before the mesh was built.
        held: the same while the mesh stood.
        after: the same when it had been closed.
    """

    groups: Mapping[str, Group]
    sums: Mapping[str, int]
    calls: tuple[Group, ...]
    before: tuple[Group, ...]
    held: tuple[Group, ...]
    after: tuple[Group, ...]


@dataclass(frozen=True, kw_only=True)
class Upset:
    """A fault made on purpose on one rank, which a measurement of the fabric has to notice.

    Args:
        offset: is added to the last element that this rank contributes, as a fabric would that corrupts data.
        late_s: seconds that this rank stays away before it takes part.
    """

    offset: float = 0.0
    late_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FabricPass:
    """One bounded all-reduce pass, as a rank saw it. Bandwidths as in nccl-tests; GB is 10⁹ bytes.

    Args:
        ranks: members of the group that was measured.
        backend: nccl on GPUs, gloo on CPUs.
        message: bytes that a rank contributed.
        seconds: of each kept round, on its slowest rank; empty when the pass did not finish.
        algbw: `message` over the median round, in GB/s; 0 when the pass did not finish.
        busbw: what the slowest link carried, in GB/s: `algbw · 2(n − 1)/n`.
        right: whether every element of the sum was exact on every rank.
        floor: bus bandwidth that the stack's owner has set for this fabric, GB/s; None where none is set.
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
        names: the devices that the framework shows this rank, by index, each under a name that is its own on the node
            (the UUID of a GPU); none on a node without.
        uses: index of the device that this rank takes, or would take if the node had any.
    """

    visible: str | None
    names: tuple[str, ...]
    uses: int


@dataclass(frozen=True, kw_only=True)
class Strain:
    """What is made unlike on one rank of a run, so that its receipt has to be one of all ranks.

    Args:
        held: bytes that this rank holds while it trains, beside the run's own, where it trains.
        late_s: seconds that this rank takes longer over the last step, after the last word of the others in it.
        lacks: a kernel that this rank cannot run, so that it falls back.
    """

    held: int = 0
    late_s: float = 0.0
    lacks: Kernel | None = None


@dataclass(frozen=True, kw_only=True)
class LeftReceipts:
    """What lies in the folder of a run when all its ranks have ended.

    Args:
        own: the name under which this rank left its receipt.
        kept: name → receipt, of every rank.
    """

    own: str
    kept: Mapping[str, Receipt]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a report says of one test: its outcome, the text of its failure or the reason of its skip, its time."""

    outcome: Literal["passed", "failed", "skipped"]
    words: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RanksRun:
    """A test file run by several ranks, as whoever asked for the run gets to see it.

    Args:
        tests: name of a test → what the report file says of it; a test that did not run has no entry.
        console: the end of what was printed, and at last that time ran out, if it did.
        exit_code: the launcher's.
    """

    tests: Mapping[str, Told]
    console: str
    exit_code: int


class World(Party, Protocol):
    """What a stack is asked inside a running world."""

    def live_mesh(self, degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
        """Build the groups of a mesh, sum `contribution` over each group of this rank, take them down again."""
        ...

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        """Reduce `message` bytes over the world, `rounds` times. No rank waits longer than `timeout_s` for the others;
        a pass that did not finish has no `seconds` and is not `right`."""
        ...

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        """What stands against a launch on a fabric that was measured so, all at once; none when it is fit."""
        ...

    def run_receipts(
        self, recipe: Recipe, degrees: Degrees, steps: int, folder: str, taken: Provenance, strain: Strain
    ) -> LeftReceipts:
        """Train `steps` steps over the world, from the first, as a run in a folder that all ranks share, and leave its
        receipts there.

        The window is of all steps after the first. `taken` is the provenance of this rank, from before it loaded
        anything; `strain` is of this rank. Answers when every rank has left its receipt.
        """
        ...

    def devices(self) -> SeenDevices:
        """What this rank sees of its node, and which device it takes."""
        ...
