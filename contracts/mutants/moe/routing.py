"""Routers that choose, count or round wrongly."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.moe import Router, Routing


class _LeavesTheBiasOut(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        return scores_BTE.topk(self.moe.top_k, dim=-1).indices


@mutant(of="MOE-01a", case="sigmoid-3-of-12-with-bias", says="its best are")
class ChoosesWithoutTheBias(Exchanged):
    """The bias is updated and saved, and never used to choose."""

    exchange = {"router": _LeavesTheBiasOut}


class _SubtractsTheBias(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        assert self.bias is not None
        return (scores_BTE - self.bias).topk(self.moe.top_k, dim=-1).indices


@mutant(of="MOE-01a", case="sigmoid-3-of-12-with-bias", says="its best are")
class SubtractsTheBias(Exchanged):
    """The router negates the sign that belongs to the update rule, so a crowded expert draws even more tokens."""

    exchange = {"router": _SubtractsTheBias}


class _BiasesTheLogits(Router):
    def forward(self, x_BTD: Tensor) -> Routing:
        logits_BTE = self.logits(x_BTD)
        routing = super().forward(x_BTD)
        biased = logits_BTE if self.bias is None else logits_BTE + self.bias
        experts_BTK = biased.topk(self.moe.top_k, dim=-1).indices
        scores_BTE = self.scores(logits_BTE)
        return routing._replace(experts_BTK=experts_BTK, gates_BTK=self.gates(scores_BTE, experts_BTK))


@mutant(of="MOE-01a", case="sigmoid-3-of-12-with-bias", says="its best are")
class BiasesLogitsInsteadOfScores(Exchanged):
    """The bias is added before the sigmoid, where one unit moves a certain expert less than an uncertain one."""

    exchange = {"router": _BiasesTheLogits}


class _FromTheUpperHalf(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        """Consider only the better of two groups of experts."""
        half = self.moe.experts // 2
        groups = scores_BTE[..., : 2 * half].unflatten(-1, (2, half))  # type: ignore[no-untyped-call]
        best_BT1 = groups.topk(2, dim=-1).values.sum(-1).argmax(-1, keepdim=True)
        inside = torch.arange(self.moe.experts, device=scores_BTE.device) // half == best_BT1
        return super().choose(scores_BTE.masked_fill(~inside, -1e9))


@mutant(of="MOE-01a", case="softmax-3-of-12", says="its best are", bugs=("AUX-19",))
class RoutesByGroups(Exchanged):
    """Group-limited routing, with two groups and the top 2 of each hard-coded, whatever the recipe says."""

    exchange = {"router": _FromTheUpperHalf}


class _PicksOneTwice(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        """k rounds of argmax; the mask of what was taken is lost in the last round."""
        best = super().choose(scores_BTE)
        return torch.cat([best[..., :-1], best[..., :1]], dim=-1)


@mutant(of="MOE-01a", case="softmax-5-of-17", says="not to 5 distinct ones")
class PicksOneExpertTwice(Exchanged):
    """An iterative top-k forgets its mask, so the best expert gets two slots."""

    exchange = {"router": _PicksOneTwice}


class _OneFewer(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(scores_BTE).roll(1, dims=1)


@mutant(of="MOE-01a", case="sigmoid-1-of-12", says="its best are")
class RoutesByTheTokenBefore(Exchanged):
    """Indices are shifted by one token, as after a padding that only one of two tensors had."""

    exchange = {"router": _OneFewer}


class _AcrossRows(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(scores_BTE.transpose(0, 1)).reshape(*scores_BTE.shape[:2], -1)


@mutant(of="MOE-01a", case="sigmoid-without-bias", says="its best are")
class ReadsSequenceFirst(Exchanged):
    """Flattens (T, B) where the rest of the block has (B, T): right only for one sequence or one token."""

    exchange = {"router": _AcrossRows}


class _InBytes(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(scores_BTE).to(torch.uint8).long()


@mutant(of="MOE-01a", case="300-experts", says="its best are")
class KeepsNumbersInBytes(Exchanged):
    """Expert numbers are stored in a byte, so expert 256 becomes expert 0."""

    exchange = {"router": _InBytes}


class _CountsTheLastSlot(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        return super().count(experts_BTK[..., -1])


@mutant(of="MOE-01b", case="softmax-3-of-12", says="assignments name it")
class CountsOneSlot(Exchanged):
    """Only one of a token's k slots is counted: right only while k is 1."""

    exchange = {"router": _CountsTheLastSlot}


class _CountsShort(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        """torch.histc over bins that end at the largest value rather than behind it."""
        numbers = experts_BTK.flatten().double()
        return torch.histc(numbers, bins=self.moe.experts, min=0, max=self.moe.experts).long().roll(1)


@mutant(of="MOE-01b", case="softmax-5-of-17", says="assignments name it")
class ShiftsTheHistogram(Exchanged):
    """Histogram bins are off by one, so the last expert's tokens are credited to the first."""

    exchange = {"router": _CountsShort}


class _CountsBelowTheLast(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        found = super().count(experts_BTK)
        return torch.cat([found[:-2], found[-2:].sum().view(1), torch.zeros_like(found[:1])])


@mutant(of="MOE-01b", case="sigmoid-3-of-12-with-bias", says="assignments name it")
class ClosesTheLastBin(Exchanged):
    """The last bin holds two experts' tokens, as in a histogram with a closed right edge; the sum is right."""

    exchange = {"router": _CountsBelowTheLast}


class _CountsWithBincount(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        return torch.bincount(experts_BTK.flatten())


@mutant(of="MOE-01b", case="40-experts-for-10-tokens", says="entries for 40 experts", bugs=("DSP-19",))
class ForgetsIdleTrailingExperts(Exchanged):
    """bincount without minlength leaves out the experts behind the last one that has a token."""

    exchange = {"router": _CountsWithBincount}


class _CountsUnique(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        """The lengths of runs, without the experts that have none, so the rest moves up."""
        found = torch.unique_consecutive(experts_BTK.flatten().sort().values, return_counts=True)[1]
        return F.pad(found, (0, self.moe.experts - len(found)))


@mutant(of="MOE-01b", case="40-experts-for-10-tokens", says="assignments name it", bugs=("DSP-19",))
class ClosesTheGapsOfIdleExperts(Exchanged):
    """Runs of equal numbers are counted in order, so an idle expert shifts the counts of all experts behind it."""

    exchange = {"router": _CountsUnique}


class _RoutesInBfloat16(Router):
    def logits(self, x_BTD: Tensor) -> Tensor:
        return F.linear(x_BTD, self.weight.to(x_BTD.dtype)).to(torch.promote_types(x_BTD.dtype, torch.float32))


@mutant(of="MOE-01e", case="softmax", says="their scores were rounded", bugs=("MXP-13",))
class RoutesInBfloat16(Exchanged):
    """Logits are computed in the dtype of the activations and widened afterwards."""

    exchange = {"router": _RoutesInBfloat16}


class _RoundsTheWeight(Router):
    def logits(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        return F.linear(x_BTD.to(wide), self.weight.to(x_BTD.dtype).to(wide))


@mutant(of="MOE-01e", case="sigmoid", says="their scores were rounded", bugs=("MXP-13",))
class RoundsTheRoutersWeight(Exchanged):
    """The matmul is float32, but the weight was cast with the rest of the module."""

    exchange = {"router": _RoundsTheWeight}


class _RoundsScores(Router):
    def scores(self, logits_BTE: Tensor) -> Tensor:
        return super().scores(logits_BTE).bfloat16().to(logits_BTE.dtype)


@mutant(of="MOE-01e", case="sigmoid", says="their scores were rounded", bugs=("MXP-13",))
class RoundsScores(Exchanged):
    """Logits are float32, but the scores are cast before top-k."""

    exchange = {"router": _RoundsScores}


class _RoundsGates(Router):
    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().gates(scores_BTE, experts_BTK).bfloat16().to(scores_BTE.dtype)


@mutant(of="MOE-01e", case="softmax", says="gates under bfloat16 differs")
class RoundsGates(Exchanged):
    """Gates are cast to the dtype of the activations before they are used."""

    exchange = {"router": _RoundsGates}


@mutant(of="MOE-01e", case="softmax", says="gates under bfloat16 differs")
class DeclaresARoundedSoftmaxRouter(Exchanged):
    """Declares that the weight of its softmax router is held in bfloat16, and holds it in float32."""

    conventions = {"softmax-router": "bfloat16-weight"}


@mutant(of="MOE-01e", case="sigmoid", says="gates under bfloat16 differs")
class DeclaresARoundedSigmoidRouter(Exchanged):
    """The same of a sigmoid router."""

    conventions = {"sigmoid-router": "bfloat16-weight"}


@mutant(of="MOE-01e", case="softmax", says="gates under bfloat16 differs")
class DeclaresARouterInTheActivationsDtype(Exchanged):
    """Declares a router in the dtype of the activations and has one in float32."""

    conventions = {"softmax-router": "activations"}


class _GatesInBfloat16(_RoundsTheWeight):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return super().weigh(chosen_BTK).bfloat16().to(chosen_BTK.dtype)


@mutant(of="MOE-01e", case="softmax", says="gates under bfloat16 differs")
class RoundsMoreThanItsWeight(Exchanged):
    """Declares that the router's weight alone is rounded; its gates are as well."""

    conventions = {"softmax-router": "bfloat16-weight"}
    exchange = {"router": _GatesInBfloat16}


class _LastOnes(_RoundsTheWeight):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(-scores_BTE)


@mutant(of="MOE-01e", case="sigmoid", says="its best are among the first 6")
class ChoosesTheWorstOfRoundedScores(Exchanged):
    """Declares a rounded weight, and the experts with the smallest scores win."""

    conventions = {"sigmoid-router": "bfloat16-weight"}
    exchange = {"router": _LastOnes}


class _MasksWhatEqualsTheBest(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        """k rounds of argmax; a round masks every score that equals its best."""
        left_BTE, found = scores_BTE.detach() + (0 if self.bias is None else self.bias), []
        for _ in range(self.moe.top_k):
            best_BT1 = left_BTE.max(-1, keepdim=True)
            found.append(best_BT1.indices)
            left_BTE = left_BTE.masked_fill(left_BTE == best_BT1.values, float("-inf"))
        return torch.cat(found, dim=-1)


@mutant(of="MOE-01g", case="softmax", says="a token goes to [0, 0, 0], expected 3 experts")
class MasksWhatEqualsTheBest(Exchanged):
    """An iterative top-k masks by value: of equal scores, the first expert gets every slot."""

    exchange = {"router": _MasksWhatEqualsTheBest}


class _GatesByTheMargin(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        shifted_BTK = chosen_BTK - chosen_BTK.amin(-1, keepdim=True)
        plain_BTK = super().weigh(chosen_BTK)
        return torch.where(shifted_BTK.sum(-1, keepdim=True) > 0, plain_BTK, shifted_BTK)


@mutant(of="MOE-01g", case="every-expert", says="y differs")
class DropsTokensThatPreferNobody(Exchanged):
    """A token whose scores are all equal is taken for padding and gets gates of zero."""

    exchange = {"router": _GatesByTheMargin}
