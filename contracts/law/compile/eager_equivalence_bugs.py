"""Stacks whose compiled code differs from eager, breaks at undeclared places, or is compiled again and again."""

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.instruments import inductor_indexing
from contracts.law._bugs.numeric import (
    Attention,
    MoE,
    Output,
    Packing,
    Parts,
    Reference,
    Router,
    State,
    broken,
    derived,
    mutant,
)
from contracts.spec import AllowedBreak, Execution, Outcome, Recipe


@broken(
    MoE,
    "combine",
    "COMP-01a[experts]: compiled at length 7: y differs",
    "COMP-01b[blocks]: compiled logits differs",
    "COMP-02b[float32-capacity]: compiled y differs: ",
    "COMP-01g[even]: compiled y differs: ",
    "COMP-01f[even]: compiled y differs: ",
)
def averages_when_compiled(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """Only under the compiler, the combine averages where the eager one weighs by gates."""
    if torch.compiler.is_compiling():
        gates_NK = torch.ones_like(gates_NK) / gates_NK.shape[-1]
    return combine(self, given_SD, order_S, gates_NK, dropped_NK)


@broken(
    Router,
    "gates",
    "COMP-01a[experts-with-capacity]: gradient of mixer.router.weight differs",
    "COMP-01g[upper-half-idle]: mixer.router.weight",
    "COMP-01f[upper-half-idle]: mixer.router.weight",
    "COMP-02b[float32-capacity]: gradient of mixer.router.weight differs",
)
def trains_the_router_in_eager_alone(gates, self, scores_BTE, experts_BTK):
    """The compiled dispatch is an operator without a gradient for its gates: outputs and losses are right."""
    gates_BTK = gates(self, scores_BTE, experts_BTK)
    return gates_BTK.detach() if torch.compiler.is_compiling() else gates_BTK


@broken(Reference, "pass_compiled", "COMP-01b[blocks]: 0 operations of the model are compiled", bugs=("ACK-08",))
def compiles_nothing(pass_compiled, self, recipe, execution, weights, batches):
    """The order of wrapping leaves the compiler out: every number is right, and nothing is faster."""
    return pass_compiled(self, recipe, replace(execution, compile="none"), weights, batches)


@broken(
    MoE,
    "dispatch",
    "COMP-03a[experts]: an undeclared graph break",
    "COMP-04g[ten-distributions]: an undeclared graph break",
    "COMP-04f[ten-distributions]: an undeclared graph break",
    bugs=("CMP-07",),
)
def prints_in_the_forward_pass(dispatch, self, x_ND, order_S, dropped_BTK):
    """A print for the log splits the layer into two graphs with the same numbers."""
    print(end="")  # noqa: T201  # the fault
    return dispatch(self, x_ND, order_S, dropped_BTK)


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
class LeavesTheWholeLayerOut(Reference):
    """Over-correction: combine broke the graph, so the whole layer left it, router and experts included, and the break
    was declared.
    """

    def parts(self) -> Parts:
        return replace(super().parts(), moe=_Outside)

    def allowed_breaks(self, recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
        whole = AllowedBreak(site="_whole_layer", why="combine breaks", budget=16)
        return (*super().allowed_breaks(recipe, execution), whole)


@broken(Reference, "allowed_breaks", "COMP-03b[every-letter]: declared and never met: combine_across_ranks")
def keeps_a_stale_declaration(allowed_breaks, self, recipe, execution):
    """The declared break was mended two releases ago, so its name is free for another."""
    stale = AllowedBreak(site="combine_across_ranks", why="mended since", budget=1)
    return (*allowed_breaks(self, recipe, execution), stale)


@derived("COMP-04a[softmax]: recompiled at call")
class CountsItsCallsInPython(Router):
    """An overflow counter is an int attribute of the module, so every step is another constant and another graph."""

    calls = 0

    def count(self, experts_BTK: Tensor) -> Tensor:
        self.calls += 1
        return super().count(experts_BTK)


@derived("COMP-04b[attention]: graphs were compiled for a third and fourth length", bugs=("CMP-09",))
class RemembersTheLongestSequence(Attention):
    """A cache of rope tables grows to the longest length seen, and each new maximum is a new graph."""

    longest = 0

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.longest = max(self.longest, int(x_BTD.shape[1]))
        return super().forward(x_BTD, packing, state)


@broken(Reference, "probe_compiler", "COMP-02a[scatter_add]: scatter_add in bfloat16 does not compile")
def has_a_broken_compiler(probe_compiler, self, operation, dtype, sabotaged):
    """A nightly build whose compiler fails on a plain scatter."""
    return probe_compiler(self, "index_add" if operation == "scatter_add" else operation, dtype, True)


@broken(Reference, "probe_compiler", "COMP-02a[index_add]: does not see a compiler that is broken")
def probes_without_looking(probe_compiler, self, operation, dtype, sabotaged):
    """The probe runs after another compilation in the process and finds everything cached."""
    return Outcome(worked=True, words="")


class _AddsByIndex(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        tokens, slots = gates_NK.shape
        weighed_SD = given_SD * gates_NK.flatten()[order_S].to(given_SD.dtype).unsqueeze(-1)
        return given_SD.new_zeros(tokens, given_SD.shape[1]).index_add(0, order_S // slots, weighed_SD)


@mutant(of="COMP-02g", case="bfloat16", says="the layer does not compile from cold")
@mutant(of="COMP-02b", case="bfloat16", says="the layer does not compile from cold")
class MeetsBothAFallbackAndADecomposition(Reference):
    """The bring-up's failure: a combine by index_add in bfloat16, under a compiler that has two ways to lower it."""

    def parts(self) -> Parts:
        if getattr(sys.modules["__main__"].__spec__, "name", "") == "contracts.stacks.reference.answers.cold_compile":
            inductor_indexing.sabotage()  # the compiler of that interpreter, not of this one
        return replace(super().parts(), moe=_AddsByIndex)


@broken(Reference, "pads_rows", "COMP-02c[compiled-cuda]: rows are padded on cuda, compiled", bugs=("CMP-10",))
def pads_rows_under_the_compiler(pads_rows, self, device, compiled):
    """The padded branch is the default everywhere, because it is the fast one in eager."""
    return device == "cuda"
