"""Receipts of runs, and the comparison of two runs (RCPT, CMP).

A receipt is one JSON object with a `schema`, written after a run however it ended. `LaunchedRun` is everything a
launcher saw. `Receipt` is what it keeps: bounded in size, redacted, and with a throughput only if the run trained. JSON
has no NaN, so a measured number is a `Figure`: NaN is the text "NaN", an unmeasured number is null, and neither is 0.
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
"""A measured number; the texts are the three values that JSON lacks."""

Ending = Literal["ok", "failed", "terminated", "refused"]
"""refused: preflight had findings that nobody acknowledged, so nothing was started."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The code that ran. `dirty`: whether the work tree differed from the revision; None is unknown, not clean."""

    revision: str | None
    dirty: bool | None
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Component:
    """One installed package of the runtime. `build` is a commit or a digest of the installed files; None when nothing
    proves which build it is."""

    name: str
    version: str
    build: str | None


@dataclass(frozen=True, kw_only=True)
class MachineClass:
    """The machine. `host` is its lineage, `box@region`; None when unknown."""

    host: str | None
    device: str | None
    devices: int
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The code, the machine and the packages of a run. `loaded` names heavy modules that were imported before the
    provenance was taken. It should be empty: a run that dies while importing them would leave no provenance."""

    source: Source
    machine: MachineClass
    python: str
    image: str | None = None
    components: tuple[Component, ...] = ()
    loaded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The findings of preflight. `ran` distinguishes a preflight without findings from one that did not run."""

    ran: bool
    findings: tuple[Finding, ...] = ()
    acknowledged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a local rank: device index and PCI bus on the node, and the nearest NIC."""

    local_rank: int
    device: int | None = None
    bus: str | None = None
    nic: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReportedStep:
    """One optimizer step as rank 0 reported it. `tokens` counts all ranks; `skipped`: no weight was updated."""

    number: int
    seconds: Figure
    tokens: int
    loss: Figure | None
    grad_norm: Figure | None
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Peaks of one rank in bytes: allocated by tensors, and reserved by the allocator."""

    rank: int
    allocated: int
    reserved: int


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The requested implementation of a part and the one that ran. `reason` says why they differ."""

    part: str
    requested: str
    actual: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """Everything a launcher saw of one run. `lane.inherited` has the complete inherited environment.

    Args:
        warmup: first steps, which compilation and cold caches slow down.
        bounded: steps of the measured window, after the warm-up.
        failure: the last output of a run that failed.
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
    """The variables of the run. `reached` are those that the ranks saw: recorded prefixes and the lane's own only.

    `allocator` is the name and value of the variable that CUDA's allocator used; None when neither spelling was set.
    """

    overlay: Mapping[str, str]
    unset: tuple[str, ...]
    reached: Mapping[str, str]
    allocator: tuple[str, str] | None


@dataclass(frozen=True, kw_only=True)
class EffectiveLane:
    """What ran, as opposed to what was asked for. An unknown name is None; a comparison needs all of them."""

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
    """The measured window: the first bounded steps after the warm-up. `first` and `last` are step numbers."""

    first: int
    last: int
    steps: int
    dropped: int
    tokens: int
    seconds: Figure


@dataclass(frozen=True, kw_only=True)
class Witness:
    """Evidence that the run trained: how many steps updated weights, how many were skipped, and whether losses and
    gradients of the former were all measured and finite. The first and the last loss are kept, even if NaN."""

    steps: int
    skipped: int
    finite_losses: bool
    finite_gradients: bool
    first_loss: Figure | None
    last_loss: Figure | None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The largest peaks over all ranks, in bytes. The gap between them is memory that the allocator could not use."""

    allocated: int
    reserved: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The receipt of one run. `tokens_per_second` is None where the evidence of training fails; `withheld` says why."""

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
    """One part in which two runs differ. None: the receipt does not have it."""

    part: Part
    base: str | None
    candidate: str | None

    def __str__(self) -> str:
        return f"{self.part}: {self.base or 'not said'} ≠ {self.candidate or 'not said'}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Whether two runs are comparable. `ratio` is candidate / base in tokens/s; None unless both are of one class.
    `besides` names other differences that influence the ratio without being part of the class: `world 8 ≠ 16`."""

    standing: Standing
    differences: tuple[Difference, ...]
    ratio: float | None
    base: float | None
    candidate: float | None
    besides: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a window of steps, from which its figures are computed.

    Args:
        tokens: of all ranks over the window, each counted once in every layout.
        parameters: matrix parameters that one token uses, over all stages and shards, without lookup tables.
        attention_layers: number of attention layers, causal or not; `heads` and `head_dim` belong to the scores.
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
    """One parameter tensor with its full shape. `same_as` names the tensor whose storage it shares; `routed` marks
    weights of routed experts, stacked or one tensor an expert; `lookup` marks a tensor that is only looked up."""

    name: str
    shape: tuple[int, ...]
    same_as: str | None = None
    routed: bool = False
    lookup: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightCount:
    """`total` counts shared storage once. `active` is what one token uses: top_k / experts of the routed weights.
    `matmul` is `active` without lookup tables; a table that is tied to an output projection counts."""

    total: int
    active: int
    matmul: int


class Evidence(Party, Protocol):
    """Receipts of runs, and comparisons between them."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        """The receipt of a run: bounded in size, redacted, and complete however the run ended.

        Raises `Refused` for facts that contradict each other.
        """
        ...

    def write_receipt(self, receipt: Receipt) -> str:
        """The receipt as text: one JSON object. Raises `Refused` for a throughput without evidence of training."""
        ...

    def read_receipt(self, text: str) -> Receipt:
        """A receipt from its text. Raises `Refused` if it is cut off, of another schema, or has an unknown field."""
        ...

    def publish_receipt(self, receipt: Receipt, path: str) -> str:
        """Write the receipt atomically to an absolute path, over an older one. Returns the path."""
        ...

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        """Whether two runs are comparable, in what they differ, and the ratio of their throughputs."""
        ...

    def figures(self, work: Work) -> Figures:
        """Throughput, model FLOPs and MFU, by the definitions of `Figures`. Raises `Refused` for impossible work."""
        ...

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        """The parameter counts of a model, by the definitions of `WeightCount`."""
        ...
