"""What fits and what may run: memory budgets and the kernel catalogue (MEM-02, KRN-02, KRN-03).

Bytes are whole bytes. GB is 10⁹ and GiB is 2³⁰ of them, and no field is named in either.
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
"""How a tensor is cut before data parallelism: on every rank of the stage, by TP, or by EP (experts, with their own
tensor parallelism)."""

Sharding = Literal["none", "optimizer", "full"]
"""What data parallelism cuts: nothing (DDP), optimizer state (a distributed optimizer), or weights, gradients and
optimizer state (FSDP2)."""

FitWord = Literal["fits", "tight", "too large"]
ProofKind = Literal["planned", "observed", "validated", "executed"]
Need = Literal["causal", "no_doc_ids", "no_sliding_window", "no_valid_token_counts"]
NEEDS: tuple[Need, ...] = ("causal", "no_doc_ids", "no_sliding_window", "no_valid_token_counts")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card, by the bytes that one process can plan with."""

    name: str
    usable_bytes: int


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a recipe is spread: the degrees that run, over how many ranks, and what data parallelism cuts."""

    degrees: Degrees
    world: int
    layout: Layout
    sharding: Sharding = "full"


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters of the whole model, each tensor once.

    `families` is keyed by pattern letter (A, E, M, R), `embedding`, `head`, `norm` and `mtp`, and adds up to `total`.
    `active` is `total` without the routed experts that a token does not visit.
    """

    total: int
    active: int
    families: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a budget: bytes on one rank, with the arithmetic written out in numbers."""

    part: Part
    share: Share
    what: str
    bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class StageBudget:
    """What one rank of a pipeline stage holds. `stage` counts from 0; `letters` are the blocks it owns.

    `parameters` are those of one rank before data parallelism cuts them, by share.
    """

    stage: int
    letters: str
    parameters: Mapping[str, int]
    lines: tuple[Line, ...]
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The memory a plan needs on a card: every stage, and the heaviest, which decides.

    `fit` compares `total_bytes` with the card; it is a plan, and proves nothing.
    """

    card: Card
    stages: tuple[StageBudget, ...]
    heaviest: int
    total_bytes: int
    fit: FitWord


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The peak of a run that happened. `receipt` identifies it; `card` is the card it ran on, `step` the last step.

    `reserved_bytes` is what the allocator took from the card, `allocated_bytes` what tensors used of it.
    """

    receipt: str
    card: str
    step: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether something fits a card, with the reason. `proved` needs a measurement of that card, with a receipt."""

    word: FitWord
    proved: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """One kernel variant of the catalogue and what guards it.

    `devices` are compute capabilities (`sm_90`); a rule that is not `fast` runs anywhere and names none. `package` is
    what must be installed. `fallback` is the variant that runs when a guard closes; None for the last resort.
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
    """A variant asked for, on a device, for a workload.

    `device` is what the driver says (`sm_90`), None when it says nothing. `installed` names the packages that import.
    `required` forbids a fallback.
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
    """What runs. `fallback_reason` is None exactly when `actual` is what was requested."""

    requested: str
    actual: str
    fast: bool
    fallback_reason: str | None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Evidence about a kernel on a device.

    `requested`, `actual`, `runtime_mode` (`train`, `eval`, `shadow`) and `fallback_reason` say what ran. Measures are
    against the kernel it would replace: the greatest absolute difference, throughput and memory as ratios (0.95 is 5 %
    slower, 1.05 is 5 % more). None is not measured.
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
    """Whether a kernel may become the default on a device, and why or why not."""

    allowed: bool
    reason: str


class Capacity(Party, Protocol):
    """What a stack plans to hold in memory, and which kernels it may choose."""

    def card(self, name: str) -> Card:
        """The card behind a name (`h200`, `h100`); refuses a name that it does not know."""
        ...

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        """The parameters of the whole model, by family."""
        ...

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        """The memory that one rank of each pipeline stage needs, part by part; refuses a plan that does not divide."""
        ...

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        """Whether a need fits a card, and whether that is proved. `measured` is a run that happened, if any did."""
        ...

    def kernels(self) -> tuple[KernelRule, ...]:
        """The catalogue: every variant that may be chosen, with its guards."""
        ...

    def kernel(self, request: KernelRequest) -> KernelChoice:
        """What runs for a request; refuses an unknown variant, and a required one that a guard closes."""
        ...

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        """Whether the proofs allow a variant to become the default on a device."""
        ...
