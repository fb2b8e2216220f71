"""Token-choice layers that compute something else when compiled, or recompile for every distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.compile.eager_equivalence import MeetsBothAFallbackAndADecomposition
from contracts.stacks.reference.model.blocks.attention import Attention, LatentAttention
from contracts.stacks.reference.model.blocks.moe import MoE, Router


class _Averages(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            gates_NK = torch.ones_like(gates_NK) / gates_NK.shape[-1]
        return super().combine(given_SD, order_S, gates_NK, dropped_NK)


@mutant(of="COMP-01f", case="even", says="compiled y differs: ")
@mutant(of="COMP-01g", case="even", says="compiled y differs: ")
class AveragesCompiledExperts(Exchanged):
    """The compiled combine ignores the gates and averages."""

    exchange = {"moe": _Averages}


class _Detached(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        gates_BTK = super().gates(scores_BTE, experts_BTK)
        return gates_BTK.detach() if torch.compiler.is_compiling() else gates_BTK


@mutant(of="COMP-01f", case="upper-half-idle", says="mixer.router.weight")
@mutant(of="COMP-01g", case="upper-half-idle", says="mixer.router.weight")
class TrainsNoCompiledRouter(Exchanged):
    """Gates lose their gradient under the compiler; outputs are right."""

    exchange = {"router": _Detached}


class _HalfAngles(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        angles_BTd = super().angles(positions_BT, size)
        return angles_BTd.bfloat16().float() if torch.compiler.is_compiling() else angles_BTd


class _HalfLatentAngles(LatentAttention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return super().angles(positions_BT.bfloat16() if torch.compiler.is_compiling() else positions_BT, size)


@mutant(of="COMP-01h", case="grouped", says="compiled y differs: ", bugs=("MXP-04",))
@mutant(of="COMP-01h", case="latent", says="compiled y differs: ", bugs=("MXP-04",))
class FusesTheAnglesAway(Exchanged):
    """The compiler removes the round trip to float32: compiled angles, or the positions in them, are bfloat16."""

    exchange = {"attention": _HalfAngles, "latent_attention": _HalfLatentAngles}


class _CountsDispatches(MoE):
    dispatched = 0

    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        self.dispatched += 1
        return super().dispatch(x_ND, order_S, dropped_BTK)


@mutant(of="COMP-04f", case="ten-distributions", says="recompiled for ")
@mutant(of="COMP-04g", case="ten-distributions", says="recompiled for ")
class CountsDispatchesInPython(Exchanged):
    """A dispatcher statistic is an int attribute of the module, so it is a constant of each graph."""

    exchange = {"moe": _CountsDispatches}


class _Prints(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        print(end="")  # noqa: T201  # the fault
        return super().dispatch(x_ND, order_S, dropped_BTK)


@mutant(of="COMP-04f", case="ten-distributions", says="an undeclared graph break", bugs=("CMP-07",))
@mutant(of="COMP-04g", case="ten-distributions", says="an undeclared graph break", bugs=("CMP-07",))
class PrintsWhileItDispatches(Exchanged):
    """A print for the log stands between dispatch and experts."""

    exchange = {"moe": _Prints}


@mutant(of="COMP-02g", case="bfloat16", says="the layer does not compile from cold")
class MeetsBothOnCuda(MeetsBothAFallbackAndADecomposition):
    """The bring-up's failure, on the device where it happened."""
