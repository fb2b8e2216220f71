"""What a run leaves behind and how two runs compare: receipts and comparison classes (RCPT, CMP).

A receipt is one JSON object with a `schema`, written after a run however it ended. `LaunchedRun` is what a launcher
saw, `Receipt` what it keeps of it: bounded, redacted, and with no figure that the run did not earn. JSON has no NaN, so
a measured number is a `Figure`: NaN is the text "NaN", never 0, and what was not measured is null, never 0 either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.launch import Lane, Launch
from contracts.spec.machine import Finding
from contracts.spec.party import Party
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees

Schema = Literal["rankproof.receipt/1"]
SCHEMA: Schema = "rankproof.receipt/1"
Figure = Literal["NaN", "Infinity", "-Infinity"] | float
"""A measured number; the texts are the three that JSON cannot write."""

Ending = Literal["ok", "failed", "terminated", "refused"]
"""refused: preflight said no and nobody acknowledged it, so nothing was started."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The code that ran. `dirty` says whether the work tree differed from the revision; None is unknown, not clean."""

    revision: str | None
    dirty: bool | None
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Component:
    """One installed package of the runtime. `build` is a commit or a digest of what is installed; None when nothing
    proves which build the version string stands for."""

    name: str
    version: str
    build: str | None


@dataclass(frozen=True, kw_only=True)
class MachineClass:
    """The machine. `host` is its lineage, `box@region`; None when it was not said."""

    host: str | None
    device: str | None
    devices: int
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Who is about to run where. `loaded` names the heavy modules that were imported before it was taken: none, or it
    came too late to describe a run that dies while importing."""

    source: Source
    machine: MachineClass
    python: str
    image: str | None = None
    components: tuple[Component, ...] = ()
    loaded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was found before the launch. Not run is not the same as nothing found, so `ran` says which."""

    ran: bool
    findings: tuple[Finding, ...] = ()
    acknowledged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a local rank ran: device number and PCI bus of the node, and the NIC nearest to it."""

    local_rank: int
    device: int | None = None
    bus: str | None = None
    nic: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReportedStep:
    """One optimizer step as rank 0 reported it. `tokens` counts all ranks; `skipped` when no weight was updated."""

    number: int
    seconds: Figure
    tokens: int
    loss: Figure | None
    grad_norm: Figure | None
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Peaks of one rank in bytes: what tensors held, and what the allocator held for them."""

    rank: int
    allocated: int
    reserved: int


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Which implementation ran where one was asked for. `reason` says why, where it is another."""

    part: str
    requested: str
    actual: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """Everything a launcher saw of one run. The inherited environment stands, whole, in `lane.inherited`.

    Args:
        warmup: steps at the beginning that measure compilation and cold caches.
        bounded: steps of the window that is measured, after the warm-up.
        failure: the last words of a run that did not end well.
    """

    recipe: Recipe
    lane: Lane
    launch: Launch
    provenance: Provenance
    preflight: Preflight
    places: tuple[Place, ...]
    started: str
    finished: str
    ending: Ending
    exit_code: int | None = None
    failure: str | None = None
    steps: tuple[ReportedStep, ...] = ()
    warmup: int = 1
    bounded: int = 20
    memory: tuple[RankMemory, ...] = ()
    backends: tuple[Backend, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables of the run: `reached` are those the ranks saw, recorded prefixes and the lane's own only.

    `allocator` is the name and the value that CUDA's allocator obeyed, None when neither spelling was set.
    """

    overlay: Mapping[str, str]
    unset: tuple[str, ...]
    reached: Mapping[str, str]
    allocator: tuple[str, str] | None


@dataclass(frozen=True, kw_only=True)
class EffectiveLane:
    """What ran, as opposed to what was asked. Empty names are None: a comparison needs them said."""

    preset: str | None
    family: str | None
    mode: str | None
    regime: str | None
    compile: str | None
    degrees: Degrees
    world: int
    launcher: str
    launcher_version: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    gives_up: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Window:
    """The first bounded window of steps, warm-up dropped: numbers of its first and last step, tokens, seconds."""

    first: int
    last: int
    steps: int
    dropped: int
    tokens: int
    seconds: Figure


@dataclass(frozen=True, kw_only=True)
class Witness:
    """That the run trained: how many steps updated weights, how many were skipped, whether losses and gradients of
    those that did were all measured and finite. The first and the last loss are kept as they were, NaN included."""

    steps: int
    skipped: int
    finite_losses: bool
    finite_gradients: bool
    first_loss: Figure | None
    last_loss: Figure | None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The largest peaks over all ranks, in bytes. Their gap is what the allocator could not use."""

    allocated: int
    reserved: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One run, as it is kept. `tokens_per_second` is None where the witness does not stand; `withheld` says why."""

    schema: Schema
    run: str
    started: str
    finished: str
    ending: Ending
    exit_code: int | None
    failure: str | None
    provenance: Provenance
    preflight: Preflight
    environment: Environment
    lane: EffectiveLane
    command: tuple[str, ...]
    places: tuple[Place, ...]
    window: Window | None
    witness: Witness | None
    tokens_per_second: float | None
    withheld: str | None
    peak: Peak | None
    backends: tuple[Backend, ...]


Part = Literal["host lineage", "preset family", "launch regime", "backend identity", "runtime provenance"]
Standing = Literal["same class", "changed class", "not comparable"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One part in which two runs differ. None: the receipt does not say."""

    part: Part
    base: str | None
    candidate: str | None

    def __str__(self) -> str:
        return f"{self.part}: {self.base or 'not said'} ≠ {self.candidate or 'not said'}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What may be said of two runs. `ratio` is candidate over base in tokens/s, and stands inside a class only.
    `besides` names what else differs and moves a ratio without being part of the class: `world 8 ≠ 16`."""

    standing: Standing
    differences: tuple[Difference, ...]
    ratio: float | None
    base: float | None
    candidate: float | None
    besides: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a window of steps computed, for its figures.

    Args:
        tokens: of all ranks over the window, each counted once whatever the layout.
        parameters: matrix parameters that a token meets, over all stages and shards; lookup tables left out.
        attention_layers: with `heads` and `head_dim` of the scores, causal or not.
    """

    tokens: int
    seconds: float
    world: int
    device: str
    dtype: Literal["bf16", "fp8"]
    parameters: int
    attention_layers: int
    heads: int
    head_dim: int
    seq_length: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """tokens/s = tokens / seconds, of the whole world. Model FLOPs a token = 6 · parameters + 12 · attention layers ·
    heads · head_dim · seq_length, recomputation not counted. MFU = tokens/s · FLOPs a token / (world · dense peak)."""

    tokens_per_second: float
    flops_per_token: int
    mfu: float


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One parameter tensor at its unsharded shape. `same_as` names the tensor whose storage it shares; `routed` marks
    the weights of routed experts, all of them in one tensor or each in its own."""

    name: str
    shape: tuple[int, ...]
    same_as: str | None = None
    routed: bool = False
    lookup: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightCount:
    """`total` counts storage once. `active` is what one token meets: of the routed ones top_k / experts. `matmul` is
    `active` without tensors that are only looked up; a table that is tied to an output projection is multiplied."""

    total: int
    active: int
    matmul: int


class Evidence(Party, Protocol):
    """What a stack writes about a run, and what it makes of two of them."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        """The receipt of a run: bounded, redacted, complete however the run ended."""
        ...

    def write_receipt(self, receipt: Receipt) -> str:
        """The receipt as text: one JSON object. Refuses one that carries a figure without its witness."""
        ...

    def read_receipt(self, text: str) -> Receipt:
        """A receipt read back; refuses what is cut off, of another schema, or has a field nobody knows."""
        ...

    def publish_receipt(self, receipt: Receipt, path: str) -> str:
        """Put the receipt at an absolute path, over an older one, whole or not at all. Answers the path."""
        ...

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        """Whether two runs may be compared, and how they do."""
        ...

    def figures(self, work: Work) -> Figures:
        """Throughput, model FLOPs and MFU, by the definitions of `Figures`."""
        ...

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        """The parameter counts of a model, by the definitions of `WeightCount`."""
        ...
