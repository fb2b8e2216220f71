"""Questions about compilation: what torch.compile made of a block or a model, and whether it changed a number (COMP).

Contracts count graph breaks, not graphs: one function with a declared break is two graphs, but so is one that was
compiled twice.
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
    """A graph break. `site` is the function that the compiler names, if it names one."""

    site: str
    reason: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class AllowedBreak:
    """A declared graph break: the qualified name of a function that is not compiled, the reason, the maximal count."""

    site: str
    why: str
    budget: int


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """What the compiler has made so far.

    Args:
        graphs: number of compiled graphs, including recompilations. recompiles: graphs of a frame that had been
            compiled before.
        operations: calls in all graphs; a minimum shows that something is compiled at all.
        targets: names of the functions that are called in the graphs.
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
    """How a compilation in a fresh interpreter ended.

    `words` is the compiler's error, empty when it worked. `run` is what the compiled block gave. `apart` is only of a
    probe of the compiler: the relative L2 distance of compiled from eager.
    """

    worked: bool
    words: str
    run: BlockRun | None = None
    apart: float = 0.0


class Compiling(Party, Protocol):
    """What a stack compiles, and how."""

    def run_compiled(self, calls: tuple[BlockCall, ...], backend: Backend) -> CompiledRuns:
        """Compile one block as the stack compiles it, and run each of the calls in turn.

        The calls differ only in their inputs.
        """
        ...

    def pass_compiled(
        self, recipe: Recipe, execution: Execution, weights: Arrays, batches: tuple[Tokens, ...]
    ) -> CompiledPasses:
        """Compile the whole model as `execution` says, and run forward and backward over each batch in turn.

        `weights` are full tensors by name; empty means the initial weights.
        """
        ...

    def allowed_breaks(self, recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
        """Every graph break that the stack declares for this recipe and execution."""
        ...

    def compile_cold(self, call: BlockCall, backend: Backend) -> Outcome:
        """Compile a block in a fresh interpreter, and run it forward and backward: `Outcome.run`."""
        ...

    def compile_under(self, call: BlockCall, environment: Mapping[str, str], folder: str) -> Outcome:
        """Compile a block with inductor in a fresh interpreter, and run it forward and backward.

        The interpreter starts in `folder` with the variables of `environment` and no others. On several ranks each rank
        compiles a block of its own.
        """
        ...

    def probe_compiler(self, operation: Operation, dtype: Element, sabotaged: bool) -> Outcome:
        """Compile one indexing operation with inductor in a fresh interpreter, and run it forward and backward.

        `sabotaged` recreates the fault of some nightlies (pytorch#179418), in which `index_add` has both a fallback and
        a decomposition. The probe must then fail; otherwise it could not detect the fault.
        """
        ...

    def pads_rows(self, device: str, compiled: bool) -> bool:
        """Whether the stack pads the permuted rows of each expert by default on this device (`cpu`, `cuda`)."""
        ...

    def wrapping(self, recipe: Recipe, execution: Execution) -> tuple[Wrap, ...]:
        """The wrappers around a model on this rank of an execution's world, from the innermost to the outermost."""
        ...
