"""The launch: the command and the environment that start a recipe on a lane.

A lane is recipe × runtime mode × parallel regime. `Lane` is the input, `Launch` the answer. The argv stays a tuple
until the last moment. Other fields of `Launch` keep what the launcher's flags cannot express.
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
"""`megatron`: Megatron-LM's own data parallelism. `fsdp2`: torch's `fully_shard`, in the stack's own trainer."""

Stage = Literal["parse", "validate", "config", "accepted"]
Provenance = Literal["unpatched", "shimmed", "substituted"]

RECORDED_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "PYTORCH_")
"""An inherited variable with one of these prefixes affects the runtime, so a launch sets, unsets or records it."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """How a recipe is to be run.

    Args:
        mode: the runtime mode: who implements the mixers, which decides TP and SP.
        regime: the parallel regime: who implements data parallelism.
        nodes: number of nodes; each has `gpus` devices in one NVLink domain.
        rendezvous: `host:port` of the c10d rendezvous; needed for more than one node.
        run: name of the run; also the rendezvous id.
        degrees: replaces all degrees of recipe and mode.
        inherited: the environment in which the launcher was started.
        force_max_connections: the platform requires an explicit CUDA_DEVICE_MAX_CONNECTIONS.
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
        torchrun: the torchrun command, up to the script.
        script: what every rank runs: a path, or `-m` and a module.
        argv: the script's arguments.
        env: variables that the launch sets.
        unset: inherited variables that the launch removes.
        recorded: inherited runtime variables with their values; they go into the receipt.
        launcher: the launcher whose argument parser reads `argv`, with the version that it was written for.
        recurrent: layers at which the launcher's `M` stands for an R block.
        sparse: layers with sparse attention, when the pattern cannot express them.
        gives_up: what this lane does not preserve, in words; reports repeat them.
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
    """How a launcher read an argv.

    `stage` is where it stopped: it refused while parsing, while validating or while building its configuration, or it
    accepted. `values` are the resulting fields, as text; `dropped` maps a flag without effect to the reason; `warned`
    is what its rank 0 is warned of.
    """

    stage: Stage
    message: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    version: str = ""
    provenance: Provenance = "unpatched"


@dataclass(frozen=True, kw_only=True)
class Reread:
    """What a trainer reads out of the argv that its own launch wrote."""

    recipe: Recipe
    mode: Mode
    degrees: Degrees


def shell(launch: Launch) -> str:
    """The launch as quoted shell text: `env`, the unset variables, the set ones, the command."""
    words = ["env"]
    for name in launch.unset:
        words += ["-u", name]
    words += [f"{name}={value}" for name, value in sorted(launch.env.items())]
    return shlex.join([*words, *launch.command])
