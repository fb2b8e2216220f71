"""What is asked about compilation: what a compiler made of a block or a model, and whether it changed a number (COMP).

Breaks are counted, not graphs: one function cut at a declared place is two graphs, and so is one compiled twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from contracts.spec.array import Arrays, Element
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.party import Party
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution, Pass, Tokens, Wrap

Backend = Literal["eager", "aot_eager", "inductor"]
Operation = Literal["index_add", "index_select", "scatter_add", "index_put"]


@dataclass(frozen=True, kw_only=True)
class Break:
    """A place where the compiler gave up: `site` is the function it names, as far as it names one."""

    site: str
    reason: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class AllowedBreak:
    """A declared break: the qualified name of a function that stays outside, why, and how often at most."""

    site: str
    why: str
    budget: int


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """What the compiler has made so far.

    Args:
        graphs: compiled, recompiled ones included. recompiles: those of a frame that had been compiled before.
        operations: calls in all graphs; a floor under them shows that something is compiled at all.
        targets: names of the functions that were called in them.
    """

    graphs: int
    recompiles: int
    operations: int
    breaks: tuple[Break, ...] = ()
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class CompiledRuns:
    """One block compiled once and called several times; `graphs` is the count after each call."""

    runs: tuple[BlockRun, ...]
    graphs: tuple[Graphs, ...]


@dataclass(frozen=True, kw_only=True)
class CompiledPasses:
    """One model compiled once and passed through several times; `graphs` is the count after each pass."""

    passes: tuple[Pass, ...]
    graphs: tuple[Graphs, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a compilation in a fresh interpreter ended: `words` are the compiler's, empty when it worked."""

    worked: bool
    words: str
    apart: float = 0.0


class Compiling(Party, Protocol):
    """What a stack compiles, and how."""

    def run_compiled(self, calls: tuple[BlockCall, ...], backend: Backend) -> CompiledRuns:
        """One block, compiled as the stack compiles it, called with each of the calls in turn. The calls differ in
        their inputs alone."""
        ...

    def pass_compiled(
        self, recipe: Recipe, execution: Execution, weights: Arrays, batches: tuple[Tokens, ...]
    ) -> CompiledPasses:
        """The whole model, compiled as `execution` says, forward and backward over each batch in turn."""
        ...

    def allowed_breaks(self, recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
        """Every place that the stack leaves out of its graphs, declared."""
        ...

    def compile_cold(self, call: BlockCall, backend: Backend) -> Outcome:
        """A block compiled in an interpreter that has compiled nothing, forward and backward. `apart` is the relative
        L2 distance of its output to the eager one."""
        ...

    def compile_under(self, call: BlockCall, environment: Mapping[str, str], folder: str) -> Outcome:
        """A block compiled by inductor, forward and backward, in an interpreter that begins in a folder and with this
        environment and no other variable. On several ranks each compiles its own."""
        ...

    def probe_compiler(self, operation: Operation, dtype: Element, sabotaged: bool) -> Outcome:
        """One indexed operation compiled by inductor, forward and backward, in an interpreter that has compiled
        nothing. `sabotaged` takes from the compiler what keeps `index_add` from having both a fallback and a
        decomposition: the same probe must then fail, or it could not have seen the fault."""
        ...

    def pads_rows(self, device: str, compiled: bool) -> bool:
        """Whether tokens are permuted into rows padded for each expert on a device (`cpu`, `cuda`), by default."""
        ...

    def wrapping(self, recipe: Recipe, execution: Execution) -> tuple[Wrap, ...]:
        """What is put around a model on this rank of an execution's world, from the inside out."""
        ...
