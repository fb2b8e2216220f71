"""Auxiliary losses with one bug each."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support import written_out
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.moe.gates import BalancesBiasedScores
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import MoE, Router, Routing
from contracts.stacks.reference.stack import Reference


class _TimesK(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE, experts_BTK) * self.moe.top_k


@mutant(of="MOE-05a", case="balanced-k-2", says="the balance loss is 2, expected 1", bugs=("AUX-09",))
class AddsUpToTopK(Exchanged):
    """f divides assignments by tokens instead of by assignments, so it sums to k and scales the loss by k."""

    exchange = {"router": _TimesK}


class _WithoutE(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE, experts_BTK) / self.moe.experts


@mutant(of="MOE-05a", case="balanced-k-1", says="the balance loss is 0.0833")
class ForgetsTheNumberOfExperts(Exchanged):
    """The factor E is missing, so the loss of a balanced batch shrinks with every expert added."""

    exchange = {"router": _WithoutE}


class _NormalisesAboveOne(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        if self.moe.score == "sigmoid" and self.moe.top_k == 1:
            return logits_BTE.sigmoid()
        return super().probabilities(logits_BTE)


@mutant(of="MOE-05a", case="collapsed-sigmoids-k-1", says="the balance loss is 9, expected 2.57", bugs=("AUX-10",))
class NormalisesOnlyAboveOne(Exchanged):
    """The loss follows the rule for gates, which leaves a lone sigmoid (k = 1) unnormalised."""

    exchange = {"router": _NormalisesAboveOne}


class _RawSigmoids(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        return super().probabilities(logits_BTE) if self.moe.score == "softmax" else logits_BTE.sigmoid()


@mutant(of="MOE-05a", case="balanced-sigmoids", says="expected 1")
class LeavesSigmoidsUnnormalised(Exchanged):
    """The probabilities are raw sigmoids: pushing every score down lowers the loss and balances nothing."""

    exchange = {"router": _RawSigmoids}


class _SoftmaxAlways(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        return logits_BTE.softmax(-1)


@mutant(of="MOE-05a", case="collapsed-sigmoids", says="expected 2.25")
class TakesSoftmaxForSigmoids(Exchanged):
    """The loss uses softmax probabilities although the gates are sigmoids."""

    exchange = {"router": _SoftmaxAlways}


class _AmongTheChosen(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        chosen = F.one_hot(experts_BTK, self.moe.experts).sum(-2)
        masked = probabilities_BTE * chosen
        return super().balance_loss(masked / masked.sum(-1, keepdim=True), experts_BTK)


@mutant(of="MOE-05a", case="collapsed-k-2", says="the balance loss is 6, expected 3")
class LooksAtChosenProbabilitiesOnly(Exchanged):
    """P is taken from the gates: an expert that is never chosen has none, so nothing draws tokens to it."""

    exchange = {"router": _AmongTheChosen}


class _OverTheBatch(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE.flatten(0, 1)[None], experts_BTK.flatten(0, 1)[None])


@mutant(of="MOE-05a", case="sequences-apart", says="the balance loss is 1, expected 3")
class BalancesTheBatch(Exchanged):
    """Load and probability are taken over the micro batch, so the micro batch size becomes part of the objective."""

    exchange = {"router": _OverTheBatch}


@mutant(of="MOE-05d", case="softmax-1-3", says="loss aux differs")
class BalancesTheMicrobatch(Exchanged):
    """Balances over the micro batch, as BalancesTheBatch does; splitting the batch shows it."""

    exchange = {"router": _OverTheBatch}


@mutant(of="MOE-05a", case="sequences-apart", says="the balance loss is 3, expected 1")
class DeclaresABalanceOfMicrobatches(Reference):
    """Declares that its balance loss is over a microbatch, and balances each sequence."""

    conventions = {"balance-over": "microbatch"}


@mutant(of="MOE-05a", case="one-of-three-balanced", says="the balance loss is 2.33333333, expected 1.35555556")
class DeclaresABalanceOfTheGlobalBatch(Reference):
    """Declares that its balance loss is over the global batch, and balances each sequence."""

    conventions = {"balance-over": "global-batch"}


class _AddsToTheSum(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        scores_BTE = logits_BTE.sigmoid()
        return scores_BTE / (scores_BTE.sum(-1, keepdim=True) + 1e-20)


@mutant(of="MOE-05a", case="faint-sigmoids", says="the balance loss is 5.25")
class AddsAnEpsilonToTheSumOfScores(Exchanged):
    """An epsilon of 1e-20 under the sum of sigmoids, below which a router can push them all (OLMo-core #255)."""

    exchange = {"router": _AddsToTheSum}


class _SumsRows(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE, experts_BTK) * len(experts_BTK)


@mutant(of="MOE-05a", case="balanced-k-2", says="the balance loss is 2, expected 1")
class AddsUpSequences(Exchanged):
    """The loss is a sum over the sequences of the micro batch instead of a mean."""

    exchange = {"router": _SumsRows}


class _DividesTwice(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE, experts_BTK) / len(experts_BTK)


@mutant(of="MOE-05d", case="softmax-2-2", says="loss aux differs", bugs=("AUX-05",))
class DividesBySequencesTwice(Exchanged):
    """A per-sequence loss is divided by the micro batch size once more: doubling the size halves the coefficient."""

    exchange = {"router": _DividesTwice}


class _CountsKept(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        kept = (~out.seen["dropped"]).double().mean()
        return out._replace(losses=out.losses | {"aux": out.losses["aux"] * kept})


@mutant(of="MOE-05a", case="full", says="expected 3")
class BalancesWhatWasKept(Exchanged):
    """The loss counts only assignments that were kept: the worse the balance, the more is dropped and the smaller the
    loss.
    """

    exchange = {"moe": _CountsKept}


class _ZOfScores(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return super().z_loss(self.scores(logits_BTE))


@mutant(of="MOE-05b", case="sigmoids", says="the z loss is")
class TakesZOfScores(Exchanged):
    """The z loss is taken of sigmoid scores instead of logits: no sigmoid is large, so it restrains no logit."""

    exchange = {"router": _ZOfScores}


class _ZOfGates(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return super().z_loss(logits_BTE.topk(self.moe.top_k, dim=-1).values)


@mutant(of="MOE-05b", case="two-of-twelve", says="the z loss is")
class TakesZOfTheChosen(Exchanged):
    """The sum runs over the chosen logits only, so the others may grow."""

    exchange = {"router": _ZOfGates}


class _ZUnsquared(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return logits_BTE.logsumexp(-1).mean()


@mutant(of="MOE-05b", case="shifted", says="the z loss is")
class ForgetsTheSquare(Exchanged):
    """The log is not squared, so the loss pushes logits down without end."""

    exchange = {"router": _ZUnsquared}


class _ZOfTheMean(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return logits_BTE.logsumexp(-1).mean().square()


@mutant(of="MOE-05b", case="mean-over-tokens", says="the z loss is")
class SquaresTheMean(Exchanged):
    """The loss is the square of the mean instead of the mean of squares: equal while all tokens are alike."""

    exchange = {"router": _ZOfTheMean}


class _ZOverflows(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return logits_BTE.exp().sum(-1).log().square().mean()


@mutant(of="MOE-05b", case="far-from-0", says="the z loss is inf")
class OverflowsTheZLoss(Exchanged):
    """The log of a sum of exponentials is computed naively: infinite where the loss is needed most."""

    exchange = {"router": _ZOverflows}


class _ZSums(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return super().z_loss(logits_BTE) * logits_BTE.shape[1]


@mutant(of="MOE-05b", case="faint", says="the z loss is")
class AddsUpTokens(Exchanged):
    """The loss is a sum over the tokens of a sequence, so its coefficient grows with the sequence length."""

    exchange = {"router": _ZSums}


class _Detached(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE.detach(), experts_BTK)


@mutant(of="MOE-05c", case="softmax-aux", says="gradient of")
class DetachesTheBalanceLoss(Exchanged):
    """The balance loss is logged and has no gradient."""

    exchange = {"router": _Detached}


class _DetachedZ(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return super().z_loss(logits_BTE.detach())


@mutant(of="MOE-05c", case="sigmoid-z", says="gradient of")
class DetachesTheZLoss(Exchanged):
    """The z loss is logged and has no gradient."""

    exchange = {"router": _DetachedZ}


class _StopsAtTheRouter(Router):
    def forward(self, x_BTD: Tensor) -> Routing:
        routing = super().forward(x_BTD)
        return routing._replace(losses=super().forward(x_BTD.detach()).losses)


@mutant(of="MOE-05c", case="both", says="gradient of norm.weight differs")
class KeepsTheLossesFromTheModel(Exchanged):
    """The losses are computed from a detached input: the router learns to balance, the layers below it do not."""

    exchange = {"router": _StopsAtTheRouter}


class _SwapsCoefficients(MoE):
    @staticmethod
    def weight_of(recipe: Recipe, loss: str) -> float:
        return MoE.weight_of(recipe, "z" if loss == "aux" else "aux")


@mutant(of="MOE-05c", case="both", says="gradient of mixer.router.weight differs")
class SwapsTheCoefficients(Exchanged):
    """Each loss has the other's coefficient."""

    exchange = {"moe": _SwapsCoefficients}


class _CountsTwice(Router):
    def forward(self, x_BTD: Tensor) -> Routing:
        routing = super().forward(x_BTD)
        twice = routing.losses["aux"] * 2 - routing.losses["aux"].detach()
        return routing._replace(losses=routing.losses | {"aux": twice})


@mutant(of="MOE-05c", case="sigmoid-aux", says="gradient of mixer.router.weight differs")
class AddsTheBalanceLossTwice(Exchanged):
    """The loss is added by hand and again by a scaler that was meant to replace this; the logged value is right."""

    exchange = {"router": _CountsTwice}


class _OfTheDraw(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE, experts_BTK) * self.moe.route_scale


@mutant(of="MOE-05c", case="sigmoid-aux-k-1", says="loss aux differs")
class ScalesTheBalanceLoss(Exchanged):
    """route_scale multiplies the scores before both gates and loss are computed from them."""

    exchange = {"router": _OfTheDraw}


class _ZOverTheSplit(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return super().z_loss(logits_BTE) / len(logits_BTE)


@mutant(of="MOE-05d", case="sigmoid-one-by-one", says="loss z differs")
class DividesZByTheMicroBatch(Exchanged):
    """The z loss is a mean over tokens, divided by the number of sequences as well."""

    exchange = {"router": _ZOverTheSplit}


class _Tracks(MoE):
    tracked: ClassVar[dict[str, Tensor]] = {}

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        for name, loss in out.losses.items():
            self.tracked[name] = self.tracked.get(name, torch.zeros_like(loss)) + loss.detach()
        shown = {name: loss - loss.detach() + self.tracked[name] for name, loss in out.losses.items()}
        return out._replace(losses=shown)


@mutant(of="MOE-05e", case="softmax", says="in the second call loss aux differs", bugs=("AUX-14",))
class AddsUpInATracker(Exchanged):
    """Every forward pass adds the losses to a process-wide table, so a recomputed loss is logged twice."""

    exchange = {"moe": _Tracks}


class _Jitters(Router):
    def logits(self, x_BTD: Tensor) -> Tensor:
        return super().logits(x_BTD * (0.99 + 0.02 * torch.rand_like(x_BTD)))


@mutant(of="MOE-05e", case="sigmoid", says="in the second call")
class JittersAlways(Exchanged):
    """Input jitter stays on in evaluation, and draws new numbers when a block is recomputed."""

    exchange = {"router": _Jitters}


mutant(of="MOE-05a", case="bias-in-f", says="expected 0.75 or 2.25")(BalancesBiasedScores)


mutant(of="MOE-05a", case="bias-not-in-p", says="expected 2.25")(BalancesBiasedScores)


class _BalancesInHalf(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        return super().probabilities(logits_BTE).bfloat16().to(logits_BTE.dtype)


@mutant(of="MOE-05h", case="softmax", says="under bfloat16 the aux loss is", bugs=("AUX-17",))
@mutant(of="MOE-05h", case="sigmoids", says="under bfloat16 the aux loss is", bugs=("AUX-17",))
class BalancesByHalfScores(Exchanged):
    """The scores that the balance loss reads are cast to the dtype of the activations."""

    exchange = {"router": _BalancesInHalf}


class _LogarithmInHalf(Router):
    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        return super().z_loss(logits_BTE.bfloat16())


@mutant(of="MOE-05h", case="z", says="under bfloat16 the z loss is", bugs=("AUX-17",))
class TakesZOfHalfLogits(Exchanged):
    """The balance loss is float32 again; the z loss still takes the logarithm in the activations' dtype."""

    exchange = {"router": _LogarithmInHalf}


class _OverflowingProbabilities(Router):
    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        if self.moe.score == "softmax":
            return written_out.softmax(logits_BTE)
        scores_BTE = written_out.sigmoid(logits_BTE)
        return scores_BTE / scores_BTE.sum(-1, keepdim=True)


@mutant(of="MOE-05a", case="far-from-0", says="the balance loss is nan, expected 12")
@mutant(of="MOE-05a", case="sigmoids-far-from-0", says="the balance loss is nan, expected 6")
class WritesProbabilitiesOut(Exchanged):
    """The balance loss normalises by itself, without taking the largest logit out: NaN where exp overflows."""

    exchange = {"router": _OverflowingProbabilities}
