"""The questions: what can be asked of a stack under test. Checks and stacks meet here and nowhere else.

What is asked about the launch stands in this file; about the node in `machine` and `installation`, about receipts in
`evidence`, about a run's life in `lifecycle`, about memory and kernels in `capacity`, about numbers in `blocks` and
`training`, about a running world in `world`, about what its ranks send each other in `messages` and `traffic`.
`questions` reads them all.

A stack answers the questions it `offers`; a check names the ones it `asks`. Values go in, values come out, and every
parameter and answer has a JSON form, so a stack may live in another process, another environment, another language
(`stacks/launched.py`). To decline: raise `Refused` for an illegal input, `NotOffered` for a question or a case that
the stack does not have. Anything else that is raised counts as broken, never as a violation.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.spec.array import Arrays
from contracts.spec.blocks import Blocks
from contracts.spec.capacity import Capacity
from contracts.spec.checkpointing import Checkpointing
from contracts.spec.codec import hints
from contracts.spec.compiling import Compiling
from contracts.spec.devices import Devices
from contracts.spec.installation import Installation
from contracts.spec.kernel_selection import Seams
from contracts.spec.launch import Lane, Launch, Reading, Reread
from contracts.spec.lifecycle import Lifecycle
from contracts.spec.machine import Machine
from contracts.spec.messages import Messaging
from contracts.spec.party import Party
from contracts.spec.pattern import HybridPattern, Placement, Translation
from contracts.spec.receipt import Evidence
from contracts.spec.recipe import Recipe
from contracts.spec.records import Fate, Form, Kill, Plan, Result, Run, Verdict
from contracts.spec.topology import Degrees, ExpertLane, GradientReduction, GroupCall, Kind, Layout, Topology
from contracts.spec.traffic import Rehearsing
from contracts.spec.training import Training
from contracts.spec.world import RanksRun, World


class Stack(Party, Protocol):
    """Every question of the law. A stack has the ones it offers; the others need not exist."""

    # pattern → block
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        """The block family of each layer: `("ablock", "eblock", …)`."""
        ...

    def render(self, pattern: str, depth: int) -> str:
        """The pattern written out over its depth, one letter a layer, cuts kept."""
        ...

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        """The pattern in the launcher's syntax. `dsa` asks for the sparse-attention symbol on every A layer."""
        ...

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        """The letters of each pipeline stage, in model order."""
        ...

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        """Where full and sparse attention stand when the given A-ranks are sparse."""
        ...

    def read_pattern(self, text: str) -> HybridPattern:
        """A launcher's side: the block list its parser reads out of a hybrid pattern."""
        ...

    # names and recipes
    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        """The recipe a preset or alias resolves to. Deprecated names must be acknowledged by name."""
        ...

    def preset_names(self) -> tuple[str, ...]:
        """Every preset and alias that can be asked for without acknowledgement."""
        ...

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        """The data-parallel size of a recipe over a world; refuses whatever does not divide, all at once."""
        ...

    def host(self, name: str) -> str:
        """The machine a host name identifies, as `box@region`; refuses a name that identifies none."""
        ...

    # launch
    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        """The command and environment that start a recipe on a lane."""
        ...

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        """A launcher's side: what its own parser and validation make of an argv."""
        ...

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        """What the stack's own trainer reads out of an argv that `launch` wrote for it."""
        ...

    # mesh
    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        """Sizes and groups of every axis."""
        ...

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        """The process groups that `rank` creates, in order, those it is no member of included."""
        ...

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        """The ranks over which a dense or expert gradient of `rank` is summed, and the divisor."""
        ...

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        """How an expert layer is wired. `expert_tp_mesh` says whether such a mesh object happens to exist;
        `local_sequence` is one rank's shard of the sequence, batch is 1."""
        ...


class Court(Party, Protocol):
    """The gate's own questions. The suite is a party too: its promises (GATE) are judged like any other."""

    def plan(self, profile: str) -> Plan:
        """What a profile demands of this law, and what it leaves outside."""
        ...

    def verdict(self, run: Run, today: str) -> Verdict:
        """The verdict on a run. `today` (ISO date) decides which deviations have expired."""
        ...

    def write_run(self, run: Run, today: str) -> str:
        """The run as JSON lines, closed by its footer."""
        ...

    def read_run(self, text: str) -> Run:
        """A run read back; refuses one that was cut off, altered or mixed."""
        ...

    def report(self, run: Run, today: str, form: Form) -> str:
        """The verdict on a run in one of the report forms."""
        ...

    def fate(self, result: Result, says: str) -> Fate:
        """What the judgement of a mutant proves, when `says` are the words it must provoke."""
        ...

    def unfit(
        self, baseline: tuple[Result, ...], kills: tuple[Kill, ...], unguarded: tuple[str, ...]
    ) -> Mapping[str, str]:
        """The contracts that may not judge after this self-test, each with the reason. `baseline` is what they said of
        the correct party, `unguarded` are those without a mutant."""
        ...

    def run_ranks(self, tests: str, ranks: int, limit_s: float) -> RanksRun:
        """Run a pytest file on several ranks of this machine. `limit_s` is what one phase of a test may take."""
        ...


class CourtOfNumbers(Party, Protocol):
    """The gate's own questions about tensors."""

    def differences(self, got: Arrays, want: Arrays) -> str:
        """In what the gradients of one pass differ from those expected, by name, in words; empty when rounding alone
        is between them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question with the types of its parameters and of its answer."""

    name: str
    parameters: Mapping[str, Any]
    answer: Any
    doc: str
    of_the_court: bool = False
    of_numbers: bool = False


NUMERIC = (Blocks, Training, Checkpointing, Compiling, Seams, Devices, Messaging, Rehearsing)
"""The protocols that are answered with tensors, and need torch on the answering side."""
PROTOCOLS = (Stack, Machine, Installation, Evidence, Lifecycle, Capacity, *NUMERIC, World)
"""Every question of a stack, a protocol a side."""


def questions() -> Mapping[str, Question]:
    """Every question of the protocol, by name, read off `Stack` itself."""
    return _QUESTIONS


def _read_questions() -> dict[str, Question]:
    found = {}
    for protocol in (*PROTOCOLS, Court, CourtOfNumbers):
        for name, function in vars(protocol).items():
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            if name in found:
                raise AssertionError(f"{protocol.__name__} asks {name!r}, which another protocol asks already")
            types = dict(hints(function))
            answer = types.pop("return")
            doc = inspect.getdoc(function) or ""
            found[name] = Question(
                name=name, parameters=types, answer=answer, doc=doc,
                of_the_court=protocol in (Court, CourtOfNumbers), of_numbers=protocol in (*NUMERIC, CourtOfNumbers),
            )  # fmt: skip
    return found


_QUESTIONS = _read_questions()

__all__ = ["Court", "CourtOfNumbers", "Party", "Question", "Stack", "questions"]
