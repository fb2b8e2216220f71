"""Memory budgets and the kernel catalogue (MEM-02, KRN-02, KRN-03).

Every memory field is in whole bytes. In text GB is 10⁹ bytes and GiB is 2³⁰ bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from contracts.spec.party import Party
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees, Layout

Part = Literal["weights", "gradients", "optimizer", "activations", "routing", "communication", "reserve"]
PARTS: tuple[Part, ...] = (
    "weights", "gradients", "optimizer", "activations", "routing", "communication", "reserve",
)  # fmt: skip
Share = Literal["replicated", "tp", "ep"]
"""How a tensor is sharded before data parallelism: on every rank of the stage, by TP, or by EP (experts, with their own
tensor parallelism)."""

Sharding = Literal["none", "optimizer", "full"]
"""What data parallelism shards: nothing (DDP), optimizer state (a distributed optimizer), or weights, gradients and
optimizer state (FSDP2)."""

Kernels = Literal["fused", "eager"]
"""What computes the layers: fused kernels (flash attention, a fused scan, fused norms), or eager torch, operation by
operation."""

FitWord = Literal["fits", "tight", "too large"]
ProofKind = Literal["planned", "observed", "validated", "executed"]
Need = Literal["causal", "no_doc_ids", "no_sliding_window", "no_valid_token_counts"]
NEEDS: tuple[Need, ...] = ("causal", "no_doc_ids", "no_sliding_window", "no_valid_token_counts")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU, with the bytes that one process can plan with."""

    name: str
    usable_bytes: int


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a recipe is parallelised: the degrees, the number of ranks, and what data parallelism shards; and by which
    kernels it runs."""

    degrees: Degrees
    world: int
    layout: Layout
    sharding: Sharding = "full"
    kernels: Kernels = "fused"


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters of the whole model, each tensor once.

    The keys of `families` are the pattern letters (A, E, M, R), `embedding`, `head`, `norm` and `mtp`; the values add
    up to `total`. `active` is `total` without the routed experts that a token does not use.
    """

    total: int
    active: int
    families: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a budget: bytes on one rank, with the formula written out in numbers."""

    part: Part
    share: Share
    what: str
    bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class StageBudget:
    """What one rank of a pipeline stage holds. `stage` counts from 0; `letters` are its blocks.

    `parameters` maps a share to the parameters of one rank, before data parallelism shards them.
    """

    stage: int
    letters: str
    parameters: Mapping[str, int]
    lines: tuple[Line, ...]
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The memory that a plan needs on a card, by stage. The heaviest stage decides.

    `total_bytes` is the total of the heaviest stage; `fit` compares it with the card. It is a plan, not a proof.
    """

    card: Card
    stages: tuple[StageBudget, ...]
    heaviest: int
    total_bytes: int
    fit: FitWord


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured memory peak of a run. `receipt` identifies the run, `card` is its card, `step` its last step.

    `reserved_bytes` is what the allocator took from the card, `allocated_bytes` what tensors used.
    """

    receipt: str
    card: str
    step: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a need fits a card, with the reason. `proved` requires a measurement on that card, with a receipt."""

    word: FitWord
    proved: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """One kernel variant of the catalogue, with the guards under which it may run.

    `devices` are compute capabilities (`sm_90`); a variant that is not `fast` runs anywhere and names none. `package`
    must be installed. `fallback` is the variant that runs when a guard fails; None for the last resort.
    """

    family: str
    variant: str
    fast: bool
    devices: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    package: str | None = None
    fallback: str | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelRequest:
    """A request for a kernel variant on a device, for a workload.

    `device` is the driver's answer (`sm_90`); None if it gives none. `installed` names the packages that can be
    imported. `required` forbids a fallback.
    """

    variant: str
    device: str | None
    installed: frozenset[str] = frozenset()
    causal: bool = True
    doc_ids: bool = False
    sliding_window: bool = False
    valid_token_counts: bool = False
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """The kernel that runs. `fallback_reason` is None exactly when `actual` is what was requested."""

    requested: str
    actual: str
    fast: bool
    fallback_reason: str | None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Evidence about a kernel on a device.

    `requested`, `actual`, `runtime_mode` (`train`, `eval`, `shadow`) and `fallback_reason` say what ran. The other
    numbers compare it with the kernel that it would replace: the largest absolute difference, and throughput and memory
    as ratios (0.95 is 5 % slower, 1.05 is 5 % more). None: not measured.
    """

    kind: ProofKind
    device: str
    requested: str
    actual: str
    runtime_mode: str = "train"
    fallback_reason: str | None = None
    receipt: str | None = None
    finite: bool | None = None
    max_abs_diff: float | None = None
    throughput_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """Whether a kernel may become the default on a device, with the reason."""

    allowed: bool
    reason: str


class Capacity(Party, Protocol):
    """Planned memory, and the choice of kernels. All sizes are in bytes."""

    def card(self, name: str) -> Card:
        """The card with a name (`h200`, `h100`). Raises `Refused` for an unknown name."""
        ...

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        """The number of parameters of the whole model, by family."""
        ...

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        """The memory that one rank of each pipeline stage needs, part by part.

        Raises `Refused` when the axes do not multiply to the world or the recipe does not divide over them.
        """
        ...

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        """Whether a need fits a card, and whether a measured run proves it. `measured` is None if there was no run.

        Raises `Refused` for sizes that are not positive.
        """
        ...

    def kernels(self) -> tuple[KernelRule, ...]:
        """The catalogue: every kernel variant that may be chosen, with its guards."""
        ...

    def kernel(self, request: KernelRequest) -> KernelChoice:
        """The kernel that runs for a request.

        Raises `Refused` for an unknown variant, and for a required variant whose guard fails.
        """
        ...

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        """Whether the proofs allow a variant to become the default on a device."""
        ...
