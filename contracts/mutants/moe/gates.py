"""Gates that are normalised, scaled, paired or detached wrongly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support import written_out
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.moe import Router, Routing
from contracts.stacks.reference.model.parts import Parts


class _SoftmaxOverAll(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return scores_BTE.softmax(-1).gather(-1, experts_BTK) * self.moe.route_scale


@mutant(of="MOE-01c", case="softmax", says="has gate", bugs=("AUX-18",))
class LeavesGatesUnnormalised(Exchanged):
    """Softmax runs over all experts without renormalising over the chosen, so the gates sum to less than the scale."""

    exchange = {"router": _SoftmaxOverAll}


class _RawSigmoids(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return chosen_BTK


@mutant(of="MOE-01c", case="sigmoid", says="has gate", bugs=("AUX-18",))
class LeavesSigmoidsUnnormalised(Exchanged):
    """Sigmoid gates are not divided by their sum."""

    exchange = {"router": _RawSigmoids}


class _NormalisesAlways(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return chosen_BTK / chosen_BTK.sum(-1, keepdim=True)


@mutant(of="MOE-01c", case="sigmoid-alone", says="has gate 1.0")
@mutant(of="MOE-01h", case="one-of-twelve", says="the gates of token 0 are [nan")
class NormalisesTheLoneGate(Exchanged):
    """Over-correction: a lone sigmoid is divided by its own sum, which makes it the constant 1, so the router never
    learns.
    """

    exchange = {"router": _NormalisesAlways}


class _AddsEpsilon(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return chosen_BTK / (chosen_BTK.sum(-1, keepdim=True) + 1e-6)


@mutant(of="MOE-01c", case="sigmoid-faint", says="has gate")
class AddsALargeEpsilon(Exchanged):
    """An epsilon of 1e-6 under the sum makes the gates of faint scores vanish."""

    exchange = {"router": _AddsEpsilon}


class _ClampsTheSum(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return chosen_BTK / chosen_BTK.sum(-1, keepdim=True).clamp_min(1e-20)


@mutant(of="MOE-01c", case="sigmoid-fainter", says="has gate")
class ClampsTheSumOfGates(Exchanged):
    """The sum of the chosen sigmoids is 1e-20 at least, and gates of fainter ones vanish."""

    exchange = {"router": _ClampsTheSum}


class _NeverScales(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().gates(scores_BTE, experts_BTK) / self.moe.route_scale


@mutant(of="MOE-01c", case="softmax-scaled", says="has gate 0.125")
class DropsTheScale(Exchanged):
    """route_scale is read for sigmoid only, or not at all."""

    exchange = {"router": _NeverScales}


class _ScalesTwice(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return super().weigh(chosen_BTK) * self.moe.route_scale


@mutant(of="MOE-01c", case="sigmoid-scaled", says="has gate")
class ScalesTwice(Exchanged):
    """Over-correction: both the router and the combine apply route_scale."""

    exchange = {"router": _ScalesTwice}


class _ScalesBefore(Router):
    def scores(self, logits_BTE: Tensor) -> Tensor:
        return super().scores(logits_BTE) * self.moe.route_scale

    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return self.weigh(scores_BTE.gather(-1, experts_BTK))


@mutant(of="MOE-01c", case="softmax-scaled", says="has gate")
class ScalesBeforeNormalising(Exchanged):
    """The scale is applied before the softmax, where it acts as a temperature."""

    exchange = {"router": _ScalesBefore}


class _SoftmaxForSigmoid(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return chosen_BTK.softmax(-1)


@mutant(of="MOE-01c", case="sigmoid", says="has gate")
class SoftmaxOfSigmoids(Exchanged):
    """Scores that are sigmoids already go through a softmax."""

    exchange = {"router": _SoftmaxForSigmoid}


class _ExponentiatesRaw(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        raw = chosen_BTK.exp()
        return raw / raw.sum(-1, keepdim=True)


@mutant(of="MOE-01c", case="softmax-far-from-0", says="has gate nan")
class OverflowsTheSoftmax(Exchanged):
    """The softmax does not subtract the largest logit."""

    exchange = {"router": _ExponentiatesRaw}


class _SortsGates(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(scores_BTE).sort(-1).values

    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().gates(scores_BTE, experts_BTK).sort(-1, descending=True).values


@mutant(of="MOE-01c", case="softmax", says="has gate")
class PairsGatesWithOtherSlots(Exchanged):
    """Experts are sorted by number while gates stay sorted by size: the gates sum up right and the output is wrong."""

    exchange = {"router": _SortsGates}


class _WeighsWithTheBias(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        biased = scores_BTE if self.bias is None else scores_BTE + self.bias
        return super().gates(biased, experts_BTK)


@mutant(of="MOE-01c", case="bias", says="has gate")
class WeighsWithTheBias(Exchanged):
    """Gates are gathered from the biased scores that chose the experts."""

    exchange = {"router": _WeighsWithTheBias}


@mutant(of="MOE-01d", case="up", says="on every selection bias y differs")
class LetsTheBiasIntoTheOutput(Exchanged):
    """Weighs with the bias, as WeighsWithTheBias does; shifting every bias shows it, without knowing the gates."""

    exchange = {"router": _WeighsWithTheBias}


class _LearnsTheBias(Router):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        del self.bias
        self.bias = nn.Parameter(torch.zeros(self.moe.experts))

    def choose(self, scores_BTE: Tensor) -> Tensor:
        assert self.bias is not None
        return (scores_BTE + self.bias).topk(self.moe.top_k, dim=-1).indices

    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        assert self.bias is not None
        bias = self.bias - self.bias.detach()  # straight through: 0 forward, a gradient backward
        return super().gates(scores_BTE + bias, experts_BTK)


@mutant(of="MOE-01d", case="down", says="mixer.router.bias has a gradient")
class LearnsTheBias(Exchanged):
    """The bias is a parameter, so the optimizer moves and decays what the balance rule moves."""

    exchange = {"router": _LearnsTheBias}


class _DetachesGates(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().gates(scores_BTE.detach(), experts_BTK)


@mutant(of="MOE-01f", case="softmax", says="gradient of mixer.router.weight differs", bugs=("SP-18",))
class DetachesGates(Exchanged):
    """Gates leave the graph, as through a gather without a gradient, so the balance loss alone trains the router."""

    exchange = {"router": _DetachesGates}


class _DetachesTheSum(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        if self.moe.score == "softmax" or self.moe.top_k == 1:
            return super().weigh(chosen_BTK)
        return chosen_BTK / chosen_BTK.sum(-1, keepdim=True).detach()


@mutant(of="MOE-01f", case="sigmoid-with-bias", says="gradient of mixer.router.weight differs")
class DetachesTheNorm(Exchanged):
    """The sum that gates are divided by is treated as a constant."""

    exchange = {"router": _DetachesTheSum}


class _StraightThrough(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        gates = super().weigh(chosen_BTK)
        return gates.detach() + chosen_BTK - chosen_BTK.detach()


@mutant(of="MOE-01f", case="softmax", says="gradient of mixer.router.weight differs")
class GivesLogitsTheGatesGradient(Exchanged):
    """The backward of the normalisation is skipped, as in a fused router whose backward is that of a gather."""

    exchange = {"router": _StraightThrough}


class _WithTheBias(Router):
    def forward(self, x_BTD: Tensor) -> Routing:
        routing = super().forward(x_BTD)
        assert self.bias is not None
        scores_BTE = self.logits(x_BTD).sigmoid() + self.bias
        biased = scores_BTE / scores_BTE.sum(-1, keepdim=True)
        return routing._replace(losses=routing.losses | {"aux": self.balance_loss(biased, routing.experts_BTK)})


@mutant(of="MOE-01d", case="up", says="on every selection bias loss aux differs")
class BalancesBiasedScores(Exchanged):
    """The loss's probabilities include the bias, so two rules pull at one score."""

    exchange = {"router": _WithTheBias}


@mutant(of="MOE-01c", case="sigmoid-faint", says="has gate")
class DeclaresAnEpsilon(Exchanged):
    """Declares 1e-20 in the sum of the chosen sigmoids and divides by the sum alone."""

    conventions = {"gate-sum": "1e-20"}


class _OverflowingSigmoid(Router):
    def scores(self, logits_BTE: Tensor) -> Tensor:
        return written_out.sigmoid(logits_BTE) if self.moe.score == "sigmoid" else logits_BTE


@mutant(of="MOE-01c", case="sigmoid-far-from-0", says="expected")
class WritesSigmoidsOut(Exchanged):
    """A fused router computes exp(x) / (1 + exp(x)), which is NaN where exp overflows."""

    exchange = {"router": _OverflowingSigmoid}


class _DividesByNothing(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        if self.moe.score == "softmax" or self.moe.top_k == 1:
            return super().weigh(chosen_BTK)
        return chosen_BTK / chosen_BTK.sum(-1, keepdim=True)


@mutant(of="MOE-01h", case="sigmoid", says="the gates of token 0 are [nan")
@mutant(of="MOE-01h", case="with-bias", says="the gates of token 0 are [nan")
class DividesScoresByNothing(Exchanged):
    """A port of the router leaves out the 1e-20 in the sum of sigmoids, which nothing but a faint token needs."""

    exchange = {"router": _DividesByNothing}


class _BalancesNothing(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        if self.moe.score == "softmax":
            return super().probabilities(logits_BTE)
        scores_BTE = logits_BTE.sigmoid()
        return scores_BTE / scores_BTE.sum(-1, keepdim=True)


@mutant(of="MOE-01h", case="with-losses", says="aux is not finite")
class BalancesScoresOfNothing(Exchanged):
    """Gates are safe from 0 / 0, and the probabilities of the balance loss are not."""

    exchange = {"router": _BalancesNothing}


class _TakesNobody(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        experts_BTK = super().choose(scores_BTE)
        return experts_BTK.masked_fill(~scores_BTE.detach().any(-1, keepdim=True), 0)


@mutant(of="MOE-01h", case="sigmoid", says="a token goes to [0, 0, 0], expected 3 experts")
class SendsFaintTokensToTheFirstExpert(Exchanged):
    """Against 0 / 0 a token without scores is called unrouted: all of its slots go to expert 0."""

    exchange = {"router": _TakesNobody}
