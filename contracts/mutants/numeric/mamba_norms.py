"""Mamba-2 wrong in one place around its recurrence: the convolution, the groups, the gate, the norm.

B sequences · T tokens · h heads · p head_dim · g groups · n state · c channels · I = h·p inner
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import GRADIENT, Convolved, Normed, Y
from contracts.stacks.reference.model.blocks.common import Packing, RMSNorm
from contracts.stacks.reference.model.blocks.mamba2 import CausalConv, GatedNorm, Mamba2, wide

# the convolution


class _Reversed(CausalConv):
    def mixed(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        taps = [seen_Bwc[:, i : seen_Bwc.shape[1] - 3 + i] * self.weight[:, 3 - i] for i in range(4)]
        return torch.stack(taps).sum(0) + self.bias


class _ConvolvesReversed(Convolved):
    convolution = _Reversed


@mutant(of="BLK-04a", case="plain", says=Y)
class ReadsTheTapsBackwards(Exchanged):
    """The tap of the token itself meets the token three before: a convolution for a correlation."""

    exchange = {"mamba2": _ConvolvesReversed}


class _Activated(CausalConv):
    def forward(self, u_BTc: Tensor, packing: Packing, state: Tensor | None) -> tuple[Tensor, Tensor]:
        seen_Bwc, of_Bw = self.extended(F.silu(u_BTc), packing, state)
        return self.mixed(seen_Bwc, of_Bw).to(u_BTc.dtype), self.last(seen_Bwc, of_Bw)


class _ActivatesFirst(Convolved):
    convolution = _Activated


@mutant(of="BLK-04a", case="plain", says=Y)
class ActivatesBeforeTheConvolution(Exchanged):
    """silu stands before the convolution."""

    exchange = {"mamba2": _ActivatesFirst}


class _Unbiased(CausalConv):
    def mixed(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        return super().mixed(seen_Bwc, of_Bw) - self.bias


class _ConvolvesUnbiased(Convolved):
    convolution = _Unbiased


@mutant(of="BLK-04a", case="plain", says=Y)
class LeavesOutTheBiasOfTheConvolution(Exchanged):
    """conv_bias is off in the kernel and on in the checkpoint."""

    exchange = {"mamba2": _ConvolvesUnbiased}


# groups, gate, norm


class _Tiles(Mamba2):
    def per_head(self, grouped_BTc: Tensor) -> Tensor:
        neighbouring = super().per_head(grouped_BTc)[:, :, :: self.heads // self.groups]
        return neighbouring.repeat(1, 1, self.heads // self.groups, 1)


@mutant(of="BLK-04i", case="last-of-the-first-group", says="head 1 reaches parts [0, 1] of wb.weight")
class TilesTheGroups(Exchanged):
    """Head i reads group i modulo g: repeat for repeat_interleave."""

    exchange = {"mamba2": _Tiles}


@mutant(of="BLK-04a", case="three-groups-of-two", says=Y)
class TilesThreeGroups(Exchanged):
    """The same in the outputs."""

    exchange = {"mamba2": _Tiles}


class _ReadsTheFirstGroup(Mamba2):
    def per_head(self, grouped_BTc: Tensor) -> Tensor:
        return super().per_head(grouped_BTc)[:, :, :1].expand(-1, -1, self.heads, -1)


@mutant(of="BLK-04i", case="last", says="head 5 reaches parts [0] of wb.weight, expected [2]")
class ReadsTheFirstGroupInEveryHead(Exchanged):
    """ngroups is taken for 1, as it is by default."""

    exchange = {"mamba2": _ReadsTheFirstGroup}


class _Whole(GatedNorm):
    def normed(self, y_BTI: Tensor) -> Tensor:
        return RMSNorm.forward(self, y_BTI)


class _NormsTheWhole(Normed):
    gated = _Whole


@mutant(of="BLK-04i", case="last", says="head 5 reaches parts [0, 1, 2] of wb.weight, expected [2]")
class NormsAcrossGroups(Exchanged):
    """One norm over the inner width: under TP it would need a reduction that nobody makes."""

    exchange = {"mamba2": _NormsTheWhole}


class _WholeBackward(GatedNorm):
    def normed(self, y_BTI: Tensor) -> Tensor:
        wrong_BTI = RMSNorm.forward(self, y_BTI)
        return wrong_BTI + (super().normed(y_BTI) - wrong_BTI).detach()


class _NormsTheWholeBackward(Normed):
    gated = _WholeBackward


@mutant(of="BLK-04a", case="plain", says=GRADIENT, bugs=("SSM-02",))
class NormsAcrossGroupsBackward(Exchanged):
    """The forward pass norms each group, the backward pass takes the inner width for one."""

    exchange = {"mamba2": _NormsTheWholeBackward}


class _Ungrouped(GatedNorm):
    def normed(self, y_BTI: Tensor) -> Tensor:
        heads = y_BTI.shape[-1] // 8
        held, self.groups = self.groups, heads
        try:
            return super().normed(y_BTI)
        finally:
            self.groups = held


class _NormsEachHead(Normed):
    gated = _Ungrouped


@mutant(of="BLK-04a", case="plain", says=Y)
class NormsEachHead(Exchanged):
    """Overshoot: a norm for each head, where two heads of a group share one."""

    exchange = {"mamba2": _NormsEachHead}


class _GatesLast(GatedNorm):
    def forward(self, y_BTI: Tensor, gate_BTI: Tensor) -> Tensor:  # type: ignore[override]
        return self.normed(wide(y_BTI)) * F.silu(wide(gate_BTI))


class _GatesBehindTheNorm(Normed):
    gated = _GatesLast


@mutant(of="BLK-04a", case="plain", says=Y)
class GatesBehindTheNorm(Exchanged):
    """norm_before_gate is on."""

    exchange = {"mamba2": _GatesBehindTheNorm}


class _FixedEpsilon(GatedNorm):
    def normed(self, y_BTI: Tensor) -> Tensor:
        self.eps = 1e-5
        return super().normed(y_BTI)


class _IgnoresEpsilon(Normed):
    gated = _FixedEpsilon


@mutant(of="BLK-04a", case="a-large-epsilon", says=Y, bugs=("MXP-08",))
class IgnoresTheEpsilonOfTheRecipe(Exchanged):
    """The gated norm is built with its own default of 1e-5."""

    exchange = {"mamba2": _IgnoresEpsilon}
