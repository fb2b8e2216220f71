"""Token-choice layers that compute something else when compiled, or recompile for every distribution."""

from dataclasses import replace

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Attention, LatentAttention, MoE, Reference, broken, derived


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
