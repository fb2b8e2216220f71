"""The launch: a recipe on a lane, written as the command and the environment that start it.

A lane is recipe × mode × launch regime. `Lane` says what is asked, `Launch` is the answer: argv stays a tuple until
the last moment, and what the launcher's flags cannot say stands beside them instead of being lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from contracts.spec.errors import Refusals
from contracts.spec.pattern import LayerNumbers
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Degrees

Regime = Literal["megatron", "fsdp2"]
"""`megatron`: Megatron-LM's own data parallelism. `fsdp2`: torch `fully_shard`, by the stack's own trainer."""

Stage = Literal["parse", "validate", "config", "accepted"]
Provenance = Literal["unpatched", "shimmed", "substituted"]

RECORDED_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "PYTORCH_")
"""An inherited variable with one of these prefixes changes the runtime, so a launch sets, unsets or records it."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """How a recipe is to be run.

    Args:
        mode: who owns the mixers (and with it TP and SP).
        regime: who owns data parallelism.
        nodes: number of nodes; each has `gpus` devices in one NVLink domain.
        rendezvous: `host:port` of the c10d rendezvous; needed for more than one node.
        run: name of the run; also the rendezvous id.
        degrees: overrides the degrees of recipe and mode, all of them at once.
        inherited: the environment the launcher was started with.
        force_max_connections: the platform insists on an explicit CUDA_DEVICE_MAX_CONNECTIONS.
        overrides: `key → value` for single fields of the recipe (`optim.lr`), as text.
    """

    mode: Mode
    regime: Regime = "megatron"
    nodes: int = 1
    gpus: int = 8
    rendezvous: str | None = None
    run: str = "run"
    degrees: Degrees | None = None
    compile: Literal["none", "regional"] = "none"
    inherited: Mapping[str, str] = field(default_factory=dict)
    force_max_connections: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = Refusals()
        found.unless(self.nodes >= 1, "nodes", self.nodes, "must be at least 1", "give the number of nodes")
        found.unless(self.gpus >= 1, "gpus", self.gpus, "must be at least 1", "give the GPUs of one node")
        found.unless(
            self.nodes == 1 or self.rendezvous is not None,
            "rendezvous",
            self.rendezvous,
            f"is missing for {self.nodes} nodes",
            "give host:port of the first node",
        )
        found.raise_any()

    @property
    def world(self) -> int:
        return self.nodes * self.gpus


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What starts the run.

    Args:
        torchrun: the launcher's own words, up to the script.
        script: what every rank runs: a path, or `-m` and a module.
        argv: the script's arguments.
        env: variables the launch sets.
        unset: variables the launch removes from what it inherited.
        recorded: inherited runtime variables, with the values they came with; they go into the receipt.
        launcher: whose argument parser reads `argv`, with the version it was written for.
        recurrent: layers at which the launcher's `M` stands for an R block.
        sparse: layers with sparse attention when the pattern cannot say it.
        gives_up: what this lane does not preserve, in words; a report must repeat them.
    """

    torchrun: tuple[str, ...]
    script: tuple[str, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    recorded: Mapping[str, str]
    launcher: str
    launcher_version: str
    degrees: Degrees
    world: int
    recurrent: LayerNumbers
    sparse: LayerNumbers
    gives_up: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command as words."""
        return (*self.torchrun, *self.script, *self.argv)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a launcher made of an argv.

    `stage` is where it stopped: it refused while parsing, while validating, while building its configuration, or it
    accepted. `values` are the fields it ended with, as text; `dropped` the flags that changed nothing, each with why.
    """

    stage: Stage
    message: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    provenance: Provenance = "unpatched"


@dataclass(frozen=True, kw_only=True)
class Reread:
    """What a trainer reads back out of the argv that its own launch wrote."""

    recipe: Recipe
    mode: Mode
    degrees: Degrees


def shell(launch: Launch) -> str:
    """The launch as shell text that survives spaces and quotes: `env`, the unset variables, the set ones, the words."""
    words = ["env"]
    for name in launch.unset:
        words += ["-u", name]
    words += [f"{name}={value}" for name, value in sorted(launch.env.items())]
    return shlex.join([*words, *launch.command])
