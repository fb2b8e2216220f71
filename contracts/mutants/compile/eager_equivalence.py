"""Stacks whose compiled code differs from eager, breaks at undeclared places, or is compiled again and again."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.instruments import inductor_indexing
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.array import Arrays, Element
from contracts.spec.compiling import AllowedBreak, CompiledPasses, Operation, Outcome
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution, Tokens
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import MoE, Router
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.stack import Reference


class _AveragesWhenCompiled(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            gates_NK = torch.ones_like(gates_NK) / gates_NK.shape[-1]
        return super().combine(given_SD, order_S, gates_NK, dropped_NK)


@mutant(of="COMP-01a", case="experts", says="compiled at length 7: y differs")
class AveragesWhenCompiled(Exchanged):
    """Under the compiler alone, the combine averages where the eager one weighs by gates."""

    exchange = {"moe": _AveragesWhenCompiled}


@mutant(of="COMP-01b", case="blocks", says="compiled logits differs")
class AveragesInACompiledModel(Exchanged):
    """The same combine in the whole model, after block tests that ran eager."""

    exchange = {"moe": _AveragesWhenCompiled}


@mutant(of="COMP-02b", case="float32-capacity", says="from eager, at most")
class AveragesWhenCompiledFromCold(Exchanged):
    """The same combine under inductor, in an interpreter of its own."""

    exchange = {"moe": _AveragesWhenCompiled}


class _DetachesWhenCompiled(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        gates_BTK = super().gates(scores_BTE, experts_BTK)
        return gates_BTK.detach() if torch.compiler.is_compiling() else gates_BTK


@mutant(of="COMP-01a", case="experts-with-capacity", says="gradient of mixer.router.weight differs")
class TrainsTheRouterInEagerAlone(Exchanged):
    """The compiled dispatch is an operator without a gradient for its gates: outputs and losses are right."""

    exchange = {"router": _DetachesWhenCompiled}


@mutant(of="COMP-01b", case="blocks", says="0 operations of the model are compiled", bugs=("ACK-08",))
class CompilesNothing(Reference):
    """The order of wrapping leaves the compiler out: every number is right, and nothing is faster."""

    def pass_compiled(
        self, recipe: Recipe, execution: Execution, weights: Arrays, batches: tuple[Tokens, ...]
    ) -> CompiledPasses:
        return super().pass_compiled(recipe, replace(execution, compile="none"), weights, batches)


class _Prints(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        print(end="")  # noqa: T201  # the fault
        return super().dispatch(x_ND, order_S, dropped_BTK)


@mutant(of="COMP-03a", case="experts", says="an undeclared graph break", bugs=("CMP-07",))
class PrintsInTheForwardPass(Exchanged):
    """A print for the log splits the layer into two graphs with the same numbers."""

    exchange = {"moe": _Prints}


class _Outside(MoE):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # not as a decorator, which would import torch's compiler when the suite is read
        self.outside = torch.compiler.disable(_whole_layer)  # type: ignore[no-untyped-call]  # torch's

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out: Output = self.outside(self, x_BTD, packing, state)
        return out


def _whole_layer(moe: MoE, x_BTD: Tensor, packing: Packing, state: State) -> Output:
    out: Output = MoE.forward(moe, x_BTD, packing, state)
    return out


@mutant(of="COMP-03a", case="experts", says="of the block is in no graph", bugs=("CMP-07",))
class LeavesTheWholeLayerOut(Exchanged):
    """Over-correction: combine broke the graph, so the whole layer left it, router and experts included, and the break
    was declared.
    """

    exchange = {"moe": _Outside}

    def allowed_breaks(self, recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
        whole = AllowedBreak(site="_whole_layer", why="combine breaks", budget=16)
        return (*super().allowed_breaks(recipe, execution), whole)


@mutant(of="COMP-03b", case="every-letter", says="declared and never met: combine_across_ranks")
class KeepsAStaleDeclaration(Reference):
    """The declared break was mended two releases ago, so its name is free for another."""

    def allowed_breaks(self, recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
        stale = AllowedBreak(site="combine_across_ranks", why="mended since", budget=1)
        return (*super().allowed_breaks(recipe, execution), stale)


class _CountsCalls(Router):
    calls = 0

    def count(self, experts_BTK: Tensor) -> Tensor:
        self.calls += 1
        return super().count(experts_BTK)


@mutant(of="COMP-04a", case="softmax", says="recompiled at call")
class CountsItsCallsInPython(Exchanged):
    """An overflow counter is an int attribute of the module, so every step is another constant and another graph."""

    exchange = {"router": _CountsCalls}


class _RemembersTheLongest(Attention):
    longest = 0

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.longest = max(self.longest, int(x_BTD.shape[1]))
        return super().forward(x_BTD, packing, state)


@mutant(of="COMP-04b", case="attention", says="graphs were compiled for a third and fourth length", bugs=("CMP-09",))
class RemembersTheLongestSequence(Exchanged):
    """A cache of rope tables grows to the longest length seen, and each new maximum is a new graph."""

    exchange = {"attention": _RemembersTheLongest}


@mutant(of="COMP-02a", case="scatter_add", says="scatter_add in bfloat16 does not compile")
class HasABrokenCompiler(Reference):
    """A nightly build whose compiler fails on a plain scatter."""

    def probe_compiler(self, operation: Operation, dtype: Element, sabotaged: bool) -> Outcome:
        return super().probe_compiler("index_add" if operation == "scatter_add" else operation, dtype, True)


@mutant(of="COMP-02a", case="index_add", says="does not see a compiler that is broken")
class ProbesWithoutLooking(Reference):
    """The probe runs after another compilation in the process and finds everything cached."""

    def probe_compiler(self, operation: Operation, dtype: Element, sabotaged: bool) -> Outcome:
        return Outcome(worked=True, words="")


class _AddsByIndex(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        tokens, slots = gates_NK.shape
        weighed_SD = given_SD * gates_NK.flatten()[order_S].to(given_SD.dtype).unsqueeze(-1)
        return given_SD.new_zeros(tokens, given_SD.shape[1]).index_add(0, order_S // slots, weighed_SD)


@mutant(of="COMP-02b", case="bfloat16", says="the layer does not compile from cold")
class MeetsBothAFallbackAndADecomposition(Exchanged):
    """The bring-up's failure: a combine by index_add in bfloat16, under a compiler that has two ways to lower it."""

    exchange = {"moe": _AddsByIndex}

    def parts(self) -> Parts:
        if getattr(sys.modules["__main__"].__spec__, "name", "") == "contracts.stacks.reference.answers.cold_compile":
            inductor_indexing.sabotage()  # the compiler of that interpreter, not of this one
        return super().parts()


@mutant(of="COMP-02c", case="compiled-cuda", says="rows are padded on cuda, compiled", bugs=("CMP-10",))
class PadsRowsUnderTheCompiler(Reference):
    """The padded branch is the default everywhere, because it is the fast one in eager."""

    def pads_rows(self, device: str, compiled: bool) -> bool:
        return device == "cuda"
