"""Experts and shared experts with one bug each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support import written_out
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import Experts, MoE, Router, Routing


class _WithoutGraph(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return super().matmul(x_SI, weight_EOI.detach(), ends_E)


@mutant(of="MOE-02b", case="softmax-relu2", says="gradient of lacks mixer.experts.w1", bugs=("OPT-26",))
class NeverTrainsExperts(Exchanged):
    """A grouped matmul has no backward for its weights: the forward is right, and the experts never learn."""

    exchange = {"experts": _WithoutGraph}


class _TakesTokensOut(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        return super().dispatch(x_ND.detach(), order_S, dropped_BTK)


@mutant(of="MOE-02b", case="without-shared", says="gradient of x differs")
class CutsTheTokensGradient(Exchanged):
    """Dispatch goes through a copy without a gradient: experts train, the layers below them do not."""

    exchange = {"moe": _TakesTokensOut}


class _ByLoad(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        counts = torch.diff(ends_E, prepend=ends_E.new_zeros(1))

        def mean(gradient: Tensor) -> Tensor:
            return gradient / counts.view(-1, 1, 1)

        given_SD = super().forward(x_SD, ends_E)
        if self.w1.requires_grad:
            self.w1.register_hook(mean)  # type: ignore[no-untyped-call]
        return given_SD


@mutant(of="MOE-02b", case="sigmoid-swiglu", says="gradient of mixer.experts.w1 differs")
class AveragesGradientsByLoad(Exchanged):
    """An expert's gradient is the mean over its tokens, so a token counts less in a busy expert."""

    exchange = {"experts": _ByLoad}


@mutant(of="MOE-02d", case="in-the-middle", says="expert 6 has no token")
class DividesByNoTokens(Exchanged):
    """The same mean, over the tokens of an idle expert, is 0/0."""

    exchange = {"experts": _ByLoad}


class _Relu(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        return self.matmul(self.matmul(x_SD, self.w1, ends_E).relu(), self.w2, ends_E)


@mutant(of="MOE-02b", case="softmax-relu2", says="y differs")
class ForgetsTheSquare(Exchanged):
    """Experts use relu where the dense block uses relu²."""

    exchange = {"experts": _Relu}


class _Crossed(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        assert self.w3 is not None
        gate_SF = F.silu(self.matmul(x_SD, self.w3, ends_E))
        return self.matmul(gate_SF * self.matmul(x_SD, self.w1, ends_E), self.w2, ends_E)


@mutant(of="MOE-02b", case="17-experts", says="y differs")
class CrossesGateAndUp(Exchanged):
    """silu is applied to w3 instead of w1: training works as well, but a checkpoint from elsewhere is useless."""

    exchange = {"experts": _Crossed}


class _HalfPrecision(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return super().matmul(x_SI.bfloat16(), weight_EOI.bfloat16(), ends_E).to(x_SI.dtype)


@mutant(of="MOE-02b", case="float32", says="y differs")
class RunsExpertsInBfloat16(Exchanged):
    """The grouped kernel takes bfloat16 only, so everything is cast for it, in a float32 run too."""

    exchange = {"experts": _HalfPrecision}


class _MeansOfNothing(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return logits_BTE.logsumexp(-1).square().mean()


@mutant(of="MOE-02c", case="softmax", says="loss z")
class AveragesNoTokens(Exchanged):
    """The mean over no tokens is NaN, and so is every gradient of the step."""

    exchange = {"router": _MeansOfNothing}


class _SkipsEmptyCalls(MoE):
    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        if not x_BTD.numel():
            return x_BTD
        return super().routed(x_BTD, routing, dropped_BTK)


@mutant(of="MOE-02c", case="sigmoid", says="gradient of lacks mixer.experts", bugs=("DSP-22",))
class SkipsExpertsWithoutTokens(Exchanged):
    """A call without tokens returns early: its weights get no gradient, and a reduction over ranks waits for one."""

    exchange = {"moe": _SkipsEmptyCalls}


class _LeavesGarbage(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        idle = torch.diff(ends_E, prepend=ends_E.new_zeros(1)) == 0

        def garbage(gradient: Tensor) -> Tensor:
            return gradient.masked_fill(idle.view(-1, 1, 1), torch.nan)

        if self.w2.requires_grad:
            self.w2.register_hook(garbage)  # type: ignore[no-untyped-call]
        return super().forward(x_SD, ends_E)


@mutant(of="MOE-02d", case="at-the-ends-bfloat16", says="expert 0 has no token", bugs=("DSP-09",))
class LeavesIdleGradientsUninitialised(Exchanged):
    """A grouped backward writes nothing for a group without rows, into a buffer that was not zeroed."""

    exchange = {"experts": _LeavesGarbage}


class _DummyToken(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        touched = sum((each.sum() for each in (self.w1, self.w2)), torch.zeros((), dtype=self.w1.dtype))
        return super().forward(x_SD, ends_E) + (touched - touched.detach()).to(x_SD.dtype)


@mutant(of="MOE-02d", case="nearly-all", says="has no token, and the gradient of its mixer.experts.w1 is")
class TouchesIdleExperts(Exchanged):
    """Over-correction: the sum of every expert's weights is added to the output as a zero, to give each a gradient."""

    exchange = {"experts": _DummyToken}


class _SharedInEachSlot(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        assert self.shared is not None
        again = self.shared(x_BTD, packing, state).y_BTD
        return out._replace(y_BTD=out.y_BTD + (self.moe.top_k - 1) * again)


@mutant(of="MOE-03a", case="softmax", says="expected its label")
class ServesOnceForEachSlot(Exchanged):
    """The shared expert is inside the loop over slots: right only while k is 1."""

    exchange = {"moe": _SharedInEachSlot}


class _SharedTwice(MoE):
    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        y_BTD = super().routed(x_BTD, routing, dropped_BTK)
        if self.shared is None:
            return y_BTD
        packed = Packing(documents_BT=dropped_BTK[..., 0].long(), positions_BT=dropped_BTK[..., 0].long())
        shared: Tensor = self.shared(x_BTD, packed, {}).y_BTD
        return y_BTD + shared


@mutant(of="MOE-03a", case="k-1", says="expected its label", bugs=("DSP-16",))
class AddsTheSharedExpertTwice(Exchanged):
    """The shared expert is added before the combine and again after it."""

    exchange = {"moe": _SharedTwice}


class _SharedScaled(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        assert self.shared is not None
        again = self.shared(x_BTD, packing, state).y_BTD
        return out._replace(y_BTD=out.y_BTD + (self.moe.route_scale - 1) * again)


@mutant(of="MOE-03a", case="scaled", says="expected its label")
class ScalesTheSharedExpert(Exchanged):
    """route_scale multiplies the whole block, shared expert included."""

    exchange = {"moe": _SharedScaled}


class _SharedWhereKept(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        lost = out.seen["dropped"].all(-1, keepdim=True)
        return out._replace(y_BTD=out.y_BTD.masked_fill(lost, 0))


@mutant(of="MOE-03a", case="all-slots-taken", says="expected its label")
class ForgetsTokensWithoutASlot(Exchanged):
    """Tokens that lost every slot leave the block, and miss the shared expert too."""

    exchange = {"moe": _SharedWhereKept}


class _OverflowingSilu(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        assert self.w3 is not None
        gate_SF, up_SF = (self.matmul(x_SD, weight, ends_E) for weight in (self.w1, self.w3))
        return self.matmul(written_out.silu(gate_SF) * up_SF, self.w2, ends_E)


@mutant(of="MOE-02b", case="saturated", says="y is not finite")
class WritesSiluOutInExperts(Exchanged):
    """The activation between the grouped products computes x · exp(x) / (1 + exp(x)): NaN where exp overflows."""

    exchange = {"experts": _OverflowingSilu}
