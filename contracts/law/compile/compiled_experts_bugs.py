"""Token-choice layers that compute something else when compiled, or recompile for every distribution."""

from dataclasses import replace

import torch
from torch import Tensor

from contracts.law._bugs.broken import broken, derived
from contracts.stacks.reference.model.blocks.attention import Attention, LatentAttention
from contracts.stacks.reference.model.blocks.moe import MoE, Router
from contracts.stacks.reference.stack import Reference


@broken(MoE, "combine", "COMP-01g[even]: compiled y differs: ", "COMP-01f[even]: compiled y differs: ")
def averages_compiled_experts(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """The compiled combine ignores the gates and averages."""
    if torch.compiler.is_compiling():
        gates_NK = torch.ones_like(gates_NK) / gates_NK.shape[-1]
    return combine(self, given_SD, order_S, gates_NK, dropped_NK)


@broken(
    Router, "gates", "COMP-01g[upper-half-idle]: mixer.router.weight", "COMP-01f[upper-half-idle]: mixer.router.weight"
)
def trains_no_compiled_router(gates, self, scores_BTE, experts_BTK):
    """Gates lose their gradient under the compiler; outputs are right."""
    gates_BTK = gates(self, scores_BTE, experts_BTK)
    return gates_BTK.detach() if torch.compiler.is_compiling() else gates_BTK


class _HalfAngles(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        angles_BTd = super().angles(positions_BT, size)
        return angles_BTd.bfloat16().float() if torch.compiler.is_compiling() else angles_BTd


class _HalfLatentAngles(LatentAttention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return super().angles(positions_BT.bfloat16() if torch.compiler.is_compiling() else positions_BT, size)


@broken(
    Reference,
    "parts",
    "COMP-01h[latent]: compiled y differs: ",
    "COMP-01h[grouped]: compiled y differs: ",
    bugs=("MXP-04",),
)
def fuses_the_angles_away(parts, self):
    """The compiler removes the round trip to float32: compiled angles, or the positions in them, are bfloat16."""
    return replace(parts(self), attention=_HalfAngles, latent_attention=_HalfLatentAngles)


@derived("COMP-04f[ten-distributions]: recompiled for ", "COMP-04g[ten-distributions]: recompiled for ")
class CountsDispatchesInPython(MoE):
    """A dispatcher statistic is an int attribute of the module, so it is a constant of each graph."""

    dispatched = 0

    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        self.dispatched += 1
        return super().dispatch(x_ND, order_S, dropped_BTK)


@broken(
    MoE,
    "dispatch",
    "COMP-04g[ten-distributions]: an undeclared graph break",
    "COMP-04f[ten-distributions]: an undeclared graph break",
    bugs=("CMP-07",),
)
def prints_while_it_dispatches(dispatch, self, x_ND, order_S, dropped_BTK):
    """A print for the log stands between dispatch and experts."""
    print(end="")  # noqa: T201  # the fault
    return dispatch(self, x_ND, order_S, dropped_BTK)
