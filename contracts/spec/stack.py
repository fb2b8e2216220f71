"""The questions: everything that a check can ask a stack under test. Checks know stacks only through this file.

This file has the questions about patterns, names, recipes, the launch and the mesh. The others:

- the node: `machine`, `installation`; receipts: `receipt`; the life of a run: `lifecycle`;
- memory and kernels: `capacity`, `kernel_selection`, `devices`;
- numbers: `blocks`, `delta_rule`, `training`, `blending`, `checkpointing`, `compiling`;
- ranks: `world` (inside a running world), `messages` and `traffic` (what ranks send each other);
- a training script: `observing`.

`questions` collects them all.

A stack answers the questions it `offers`; a check names the questions it `asks`. Every parameter and every answer is a
value with a JSON form, so a stack may live in another process, another environment or another language
(`stacks/launched.py`). A stack declines by raising `Refused` for an illegal input, or `NotOffered` for a question or a
case that it does not have. Any other exception counts as broken, never as a violation.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.spec.blending import Blending
from contracts.spec.blocks import Blocks
from contracts.spec.capacity import Capacity
from contracts.spec.checkpointing import Checkpointing
from contracts.spec.codec import hints
from contracts.spec.compiling import Compiling
from contracts.spec.delta_rule import DeltaRule
from contracts.spec.devices import Devices
from contracts.spec.errors import NotOffered
from contracts.spec.installation import Installation
from contracts.spec.kernel_selection import Seams
from contracts.spec.launch import Lane, Launch, Reading, Reread
from contracts.spec.lifecycle import Lifecycle
from contracts.spec.machine import Machine
from contracts.spec.messages import Messaging
from contracts.spec.observing import Observing
from contracts.spec.party import Party
from contracts.spec.pattern import HybridPattern, Placement, Translation
from contracts.spec.receipt import Evidence
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees, ExpertLane, GradientReduction, GroupCall, Kind, Layout, Topology
from contracts.spec.traffic import Rehearsing
from contracts.spec.training import Training
from contracts.spec.world import World


class Stack(Party, Protocol):
    """Patterns, names, recipes, the launch and the mesh. A stack has the methods it offers; the others need not exist.

    A pattern is a string of block letters (A attention, E experts or an MLP, M Mamba, R recurrent) that is tiled over
    the depth; `|` cuts pipeline stages. `contracts/spec/pattern.py` has its rules.
    """

    # pattern → block
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        """The block family of each of the `depth` layers: `("ablock", "eblock", …)`.

        Raises `Refused` for an unknown letter (with its 1-based column), an illegal depth, and cuts in a pattern whose
        letters do not number the depth.
        """
        ...

    def render(self, pattern: str, depth: int) -> str:
        """The pattern written out over its depth: one letter a layer, with its cuts. Refuses what `blocks` refuses."""
        ...

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        """The pattern in the launcher's hybrid syntax.

        `moe` says whether E layers hold experts or a dense MLP, `dsa` asks for the sparse-attention symbol on every
        A layer, and `mtp_depth` is the number of multi-token prediction heads (0 for none). Raises `Refused` for what
        the launcher cannot run; nothing is substituted.
        """
        ...

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        """The letters of each pipeline stage, in model order.

        A pattern without cuts is cut into `pp` equal stages. Raises `Refused` when the depth, or the number of written
        stages, is not a multiple of `pp`.
        """
        ...

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        """Which attention layers are full and which are sparse, when the given A-ranks are sparse.

        An A-rank counts only attention layers, from 0. Raises `Refused` for an A-rank that is repeated or that the
        pattern does not have.
        """
        ...

    def read_pattern(self, text: str) -> HybridPattern:
        """The blocks that a launcher's own parser reads out of a hybrid pattern.

        Answered by launchers. Raises `Refused` for a pattern that the launcher refuses.
        """
        ...

    # names and recipes
    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        """The recipe that a preset or alias resolves to.

        Raises `Refused` for an unknown name, for a label such as `current`, and for a deprecated name that
        `acknowledge` does not contain.
        """
        ...

    def preset_names(self) -> tuple[str, ...]:
        """Every preset and alias that resolves without an acknowledgement."""
        ...

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        """The data-parallel size of a recipe over `world` ranks.

        Raises `Refused` with everything that does not divide (heads, groups, experts, tokens, layers, ranks), all at
        once.
        """
        ...

    def host(self, name: str) -> str:
        """The machine that a host name identifies, as `box@region`. Raises `Refused` if it identifies none."""
        ...

    # launch
    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        """The command and the environment that start a recipe on a lane.

        Raises `Refused` for a recipe, mode, regime, override or inherited variable that the stack cannot run.
        """
        ...

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        """What a launcher's own parser and validation make of an argv, under these variables and on `world` ranks.

        Answered by launchers. A refusal by the launcher is an answer (`Reading.stage`), not a `Refused`.
        """
        ...

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        """What the stack's own trainer reads out of an argv that `launch` wrote for it."""
        ...

    # mesh
    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        """The size and the groups of every axis of the mesh.

        Raises `Refused` when the axes do not multiply to `world`, and for degrees that the layout does not have.
        """
        ...

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        """The process groups that `rank` creates, in order, including groups it is not a member of."""
        ...

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        """The ranks over which a gradient of `rank` is summed, and the divisor of the sum.

        `kind` says whether the parameter is dense or belongs to experts.
        """
        ...

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        """How an expert layer is wired under these degrees.

        `expert_tp_mesh` says whether a mesh object for expert TP exists; `local_sequence` is the length of one rank's
        shard of the sequence, in tokens. The batch is 1.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question with the types of its parameters and of its answer.

    `added` has the parameters that came after the first release of the question, with what stands for their absence:
    the defaults of the protocol. They are the last ones.
    """

    name: str
    parameters: Mapping[str, Any]
    answer: Any
    doc: str
    of_numbers: bool = False
    added: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, party: Party, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """A party's answer, which gets an argument that was added later only if it takes it.

        Raises:
            NotOffered: for an answer that does not take it, in a case that needs it.
        """
        answer = getattr(party, self.name)
        if not self.added:
            return answer(*arguments, **named)
        given = {**self.added, **dict(zip(self.parameters, arguments, strict=False)), **named}
        values = [given[name] for name in self.parameters if name in given]
        for name, absent in reversed([*self.added.items()]):
            try:
                inspect.signature(answer).bind(*values)
                break
            except TypeError:
                if values.pop() != absent:
                    words = f"its {self.name} takes no `{name}`, which this case gives: add the parameter"
                    raise NotOffered(f"{party.name}: {words}") from None
        return answer(*values)


NUMERIC = (
    Blocks, DeltaRule, Training, Blending, Checkpointing, Compiling, Seams, Devices, Messaging, Rehearsing, Observing,
)  # fmt: skip
"""The protocols whose answers are tensors, or are observed of tensors; the answering side needs torch."""
PROTOCOLS = (Stack, Machine, Installation, Evidence, Lifecycle, Capacity, *NUMERIC, World)
"""Every protocol with questions to a stack."""


def questions() -> Mapping[str, Question]:
    """Every question, by name, read off the protocols themselves."""
    return _QUESTIONS


def _read_questions() -> dict[str, Question]:
    found = {}
    for protocol in PROTOCOLS:
        for name, function in vars(protocol).items():
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            if name in found:
                raise AssertionError(f"{protocol.__name__} asks {name!r}, which another protocol asks already")
            types = dict(hints(function))
            answer = types.pop("return")
            doc = inspect.getdoc(function) or ""
            added = {each.name: each.default for each in inspect.signature(function).parameters.values()
                     if each.default is not each.empty}  # fmt: skip
            found[name] = Question(name=name, parameters=types, answer=answer, doc=doc, of_numbers=protocol in NUMERIC,
                                   added=added)  # fmt: skip
    return found


_QUESTIONS = _read_questions()

__all__ = ["Party", "Question", "Stack", "questions"]
