"""Answers the launch-side questions with the real Megatron-Core, over `rankproof/1`. Runs inside its environment.

Megatron is imported once, at the first question that needs it. Each question is answered in a fork, so that it leaves
no globals for the next. `labels` says what was replaced to run on a CPU.
"""

import importlib
import json
import os
import sys
import typing
from collections.abc import Mapping
from typing import Any, TextIO

from contracts.spec import (
    MOVED,
    Degrees,
    GradientReduction,
    GroupCall,
    HybridPattern,
    Kind,
    Layout,
    NotOffered,
    Reading,
    Topology,
    refuse,
)
from contracts.stacks.forked_call import ForkDied, in_a_fork
from contracts.stacks.kit.answering import answering, located, version_of
from contracts.stacks.kit.versions import FallingBack, labels
from contracts.stacks.megatron import arguments, topology
from contracts.stacks.megatron.abilities import VERSIONS
from contracts.stacks.protocol import HELLO, PROTOCOL
from contracts.stacks.serve import own_stdout, reply

FAKE_GROUP = "torch's fake process group"
HYBRID = "megatron.core.models.hybrid.hybrid_layer_allocation"
NEEDS = {
    "topology": ("megatron.core.parallel_state",),
    "group_calls": ("megatron.core.parallel_state",),
    "gradient_reduction": ("megatron.core.parallel_state", "megatron.core.distributed", "megatron.core.transformer"),
    "read_pattern": (HYBRID,),
    "read_argv": (arguments.MODULE,),
}
"""Question → the module that is imported before the answer. A version offers the questions whose modules it ships."""


class Worker:
    """The installed Megatron-Core. It offers what its package ships: the argument parser came with 0.17."""

    name = "megatron"
    layouts: frozenset[Layout] = frozenset({"borrowed"})

    def __init__(self) -> None:
        package, version = located("megatron.core"), version_of("megatron-core", "megatron.core")
        if package is None or version is None or not package.is_dir():
            raise ImportError("there is no megatron.core here")
        self._root, self.version = package.parent, version
        self.answering = answering("megatron.core", version, "worker of launches and topology")
        self.offers = frozenset(name for name, modules in NEEDS.items() if all(map(self._ships, modules)))
        self._overridden = not hasattr(typing, "override")
        said = {name: self._label(name) for name in sorted(self.offers)}
        self.labels: Mapping[str, str] = labels(said, self.version, VERSIONS)

    def prepare(self, question: str) -> None:
        """Import what a question needs, so that forks inherit it."""
        if question not in self.offers:
            return
        if question == "read_argv":
            self._add_override()
        for module in NEEDS[question]:
            importlib.import_module(module)
        if question == "read_argv":
            arguments.prepare()

    def read_pattern(self, text: str) -> HybridPattern:
        """The blocks that Megatron's hybrid parser reads, by its own names of the symbols, in lower case.

        A `D` is `ds_attention`, an `E` is `moe`. Stage cuts are parsed but not returned.
        """
        hybrid = importlib.import_module(HYBRID)
        names = {symbol: name.lower() for name, symbol in vars(hybrid.Symbols).items() if isinstance(symbol, str)}
        try:
            parsed = hybrid.parse_hybrid_pattern(text)
            segments = (parsed.main_pattern or "").split(hybrid.Symbols.PIPE)
            layers = [layer for segment in segments for layer in hybrid.validate_segment_layers(segment)]
        except ValueError as error:
            raise refuse("text", text, str(error), f"write what Megatron-Core {self.version} reads") from None
        return HybridPattern(
            main=tuple(names[layer] for layer in layers),
            mtp=tuple(names[layer] for layer in parsed.mtp_pattern or ""),
            mtp_depth=parsed.mtp_num_depths,
        )

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        """How parser, validation and configuration read an argv; see `arguments`."""
        return arguments.read(argv, env, world, self.version, shimmed=self._overridden)

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        """Sizes and groups of every axis, in the borrowed layout; see `topology`."""
        _only_borrowed(layout)
        return topology.topology(degrees, world)

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        """The `new_group` calls that a rank really makes, without the gloo copies."""
        _only_borrowed(layout)
        return topology.group_calls(degrees, world, rank)

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        """The all-reduce and the factor that Megatron's data-parallel wrapper really applies to a gradient."""
        _only_borrowed(layout)
        return topology.gradient_reduction(degrees, world, rank, kind)

    def _ships(self, module: str) -> bool:
        path = self._root.joinpath(*module.split(".")[1:])
        return path.is_dir() or path.with_suffix(".py").is_file()

    def _label(self, question: str) -> str:
        match question:
            case "topology":
                return f"unpatched, under {FAKE_GROUP}, which makes the groups that a rank is in"
            case "group_calls":
                return f"unpatched, new_group recorded, and run for own groups, under {FAKE_GROUP}, gloo twins left out"
            case "gradient_reduction":
                return f"shimmed: torch.cuda.current_device and current_stream are the CPU's; under {FAKE_GROUP}"
            case "read_argv":
                also = " and typing.override" if self._overridden else ""
                engine = arguments.TRANSFORMER_ENGINE
                return f"shimmed: device capability 9.0{also}; Transformer Engine {engine} presumed where it says so"
        return "unpatched"

    def _add_override(self) -> None:
        """Add the one name of `typing` from Python 3.12 that Megatron-Core 0.19 uses, if it is missing."""
        if self._overridden:
            typing.override = importlib.import_module("typing_extensions").override  # type: ignore[attr-defined]


def _only_borrowed(layout: Layout) -> None:
    if layout != "borrowed":
        raise NotOffered(f"Megatron-Core builds the borrowed layout, not {layout}", "case")


def serve(worker: Worker, stdin: TextIO, stdout: TextIO) -> None:
    """Answer line by line, each question in a fork, until the input ends."""
    for line in stdin:
        stdout.write(_reply(worker, line) + "\n")
        stdout.flush()


def _reply(worker: Worker, line: str) -> str:
    try:
        asked = json.loads(line)
        question, number = str(asked["question"]), int(asked["id"])
    except (ValueError, KeyError, TypeError):
        return _dumps(reply(worker, line))
    try:
        if question != HELLO:
            worker.prepare(question)
        tried = worker.version in VERSIONS
        party: Any = worker if tried else FallingBack(worker, f"megatron {worker.version}", VERSIONS)
        return in_a_fork(lambda: _dumps(reply(party, line)))
    except ForkDied as died:
        words = f"the process that answered {question} was {died}"
    except Exception as error:
        words = f"Megatron-Core cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, ImportError) and worker.version not in VERSIONS:  # main wants other packages, or has moved
            return _dumps({"protocol": PROTOCOL, "id": number, "not_offered": words, "lack": MOVED})
    return _dumps({"protocol": PROTOCOL, "id": number, "error": words})


def _dumps(message: Mapping[str, object]) -> str:
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def main(words: list[str]) -> None:
    """Serve; with the one word `flags`, print every flag of the live parser as JSON instead."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same answers with and without a device
    with own_stdout() as stdout:
        worker = Worker()
        if words == ["flags"]:
            worker.prepare("read_argv")
            json.dump(arguments.flags(), stdout)
        else:
            serve(worker, sys.stdin, stdout)
