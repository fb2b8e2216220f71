"""Routers that choose, count or round wrongly."""

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.law._bugs.numeric import Router, broken, derived, with_attributes


@broken(Router, "choose", "MOE-01a[sigmoid-3-of-12-with-bias]: its best are")
def chooses_without_the_bias(choose, self, scores_BTE):
    """The bias is updated and saved, and never used to choose."""
    return scores_BTE.topk(self.moe.top_k, dim=-1).indices


@broken(Router, "choose", "MOE-01a[sigmoid-3-of-12-with-bias]: its best are")
def subtracts_the_bias(choose, self, scores_BTE):
    """The router negates the sign that belongs to the update rule, so a crowded expert draws even more tokens."""
    return (scores_BTE - self.bias).topk(self.moe.top_k, dim=-1).indices


@broken(Router, "forward", "MOE-01a[sigmoid-3-of-12-with-bias]: its best are")
def biases_logits_instead_of_scores(forward, self, x_BTD):
    """The bias is added before the sigmoid, where one unit moves a certain expert less than an uncertain one."""
    logits_BTE = self.logits(x_BTD)
    routing = forward(self, x_BTD)
    biased = logits_BTE if self.bias is None else logits_BTE + self.bias
    experts_BTK = biased.topk(self.moe.top_k, dim=-1).indices
    scores_BTE = self.scores(logits_BTE)
    return routing._replace(experts_BTK=experts_BTK, gates_BTK=self.gates(scores_BTE, experts_BTK))


@broken(Router, "choose", "MOE-01a[softmax-3-of-12]: its best are", bugs=("AUX-19",))
def routes_by_groups(choose, self, scores_BTE):
    """Group-limited routing, with two groups and the top 2 of each hard-coded, whatever the recipe says."""
    half = self.moe.experts // 2
    groups = scores_BTE[..., : 2 * half].unflatten(-1, (2, half))
    best_BT1 = groups.topk(2, dim=-1).values.sum(-1).argmax(-1, keepdim=True)
    inside = torch.arange(self.moe.experts, device=scores_BTE.device) // half == best_BT1
    return choose(self, scores_BTE.masked_fill(~inside, -1e9))


@broken(Router, "of_best_groups", "MOE-01a[groups]: its best are")
def judges_a_group_by_its_best_expert(of_best_groups, self, scores_BTE, number, chosen):
    """A group counts as much as its best expert, as in DeepSeek-V2."""
    scores_BTgS = scores_BTE.unflatten(-1, (number, -1))
    edge_BT1 = scores_BTgS.amax(-1).topk(chosen, dim=-1).values[..., -1:]
    return scores_BTgS.masked_fill((scores_BTgS.amax(-1) < edge_BT1).unsqueeze(-1), -torch.inf).flatten(-2)


@broken(
    Router,
    "of_best_groups",
    "MOE-01d[groups-down]: with -7 on every selection bias y differs",
    "MOE-01d[groups-down-relu2]: with -7 on every selection bias y differs",
)
def leaves_other_groups_at_zero(of_best_groups, self, scores_BTE, number, chosen):
    """Scores of other groups become 0, which is more than a score that a bias made negative."""
    limited_BTE = of_best_groups(self, scores_BTE, number, chosen)
    return limited_BTE.masked_fill(limited_BTE.isinf(), 0.0)


@broken(Router, "of_best_groups", "MOE-01a[groups]: its best are")
def strides_its_groups(of_best_groups, self, scores_BTE, number, chosen):
    """Every n-th expert makes a group, in place of neighbours."""
    order = torch.arange(self.moe.experts, device=scores_BTE.device).view(-1, number).T.flatten()
    return of_best_groups(self, scores_BTE[..., order], number, chosen)[..., order.argsort()]


@broken(Router, "of_best_groups", "MOE-01a[groups]: its best are")
def chooses_from_every_group(of_best_groups, self, scores_BTE, number, chosen):
    """The groups of the recipe limit nothing."""
    return scores_BTE


@broken(Router, "choose", "MOE-01a[softmax-5-of-17]: not to 5 distinct ones")
def picks_one_expert_twice(choose, self, scores_BTE):
    """An iterative top-k forgets its mask, so the best expert gets two slots."""
    best = choose(self, scores_BTE)
    return torch.cat([best[..., :-1], best[..., :1]], dim=-1)


@broken(Router, "choose", "MOE-01a[sigmoid-1-of-12]: its best are")
def routes_by_the_token_before(choose, self, scores_BTE):
    """Indices are shifted by one token, as after a padding that only one of two tensors had."""
    return choose(self, scores_BTE).roll(1, dims=1)


@broken(Router, "choose", "MOE-01a[sigmoid-without-bias]: its best are")
def reads_sequence_first(choose, self, scores_BTE):
    """Flattens (T, B) where the rest of the block has (B, T): right only for one sequence or one token."""
    return choose(self, scores_BTE.transpose(0, 1)).reshape(*scores_BTE.shape[:2], -1)


@broken(Router, "choose", "MOE-01a[300-experts]: its best are")
def keeps_numbers_in_bytes(choose, self, scores_BTE):
    """Expert numbers are stored in a byte, so expert 256 becomes expert 0."""
    return choose(self, scores_BTE).to(torch.uint8).long()


@broken(Router, "count", "MOE-01b[softmax-3-of-12]: assignments name it")
def counts_one_slot(count, self, experts_BTK):
    """Only one of a token's k slots is counted: right only while k is 1."""
    return count(self, experts_BTK[..., -1])


@broken(Router, "count", "MOE-01b[softmax-5-of-17]: assignments name it")
def shifts_the_histogram(count, self, experts_BTK):
    """Histogram bins are off by one, so the last expert's tokens are credited to the first."""
    numbers = experts_BTK.flatten().double()
    return torch.histc(numbers, bins=self.moe.experts, min=0, max=self.moe.experts).long().roll(1)


@broken(Router, "count", "MOE-01b[sigmoid-3-of-12-with-bias]: assignments name it")
def closes_the_last_bin(count, self, experts_BTK):
    """The last bin holds two experts' tokens, as in a histogram with a closed right edge; the sum is right."""
    found = count(self, experts_BTK)
    return torch.cat([found[:-2], found[-2:].sum().view(1), torch.zeros_like(found[:1])])


@broken(Router, "count", "MOE-01b[40-experts-for-10-tokens]: entries for 40 experts", bugs=("DSP-19",))
def forgets_idle_trailing_experts(count, self, experts_BTK):
    """bincount without minlength leaves out the experts behind the last one that has a token."""
    return torch.bincount(experts_BTK.flatten())


@broken(Router, "count", "MOE-01b[40-experts-for-10-tokens]: assignments name it", bugs=("DSP-19",))
def closes_the_gaps_of_idle_experts(count, self, experts_BTK):
    """Runs of equal numbers are counted in order, so an idle expert shifts the counts of all experts after it."""
    found = torch.unique_consecutive(experts_BTK.flatten().sort().values, return_counts=True)[1]
    return F.pad(found, (0, self.moe.experts - len(found)))


@broken(Router, "logits", "MOE-01e[softmax]: their scores were rounded", bugs=("MXP-13",))
def routes_in_bfloat16(logits, self, x_BTD):
    """Logits are computed in the dtype of the activations and widened afterwards."""
    return F.linear(x_BTD, self.weight.to(x_BTD.dtype)).to(torch.promote_types(x_BTD.dtype, torch.float32))


class _RoundsTheWeight(Router):
    def logits(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        return F.linear(x_BTD.to(wide), self.weight.to(x_BTD.dtype).to(wide))


RoundsTheRoutersWeight = with_attributes(
    "RoundsTheRoutersWeight",
    "The matmul is float32, but the weight was cast with the rest of the module.",
    "MOE-01e[sigmoid]: their scores were rounded",
    owner=_RoundsTheWeight,
    bugs=("MXP-13",),
)


@broken(Router, "scores", "MOE-01e[sigmoid]: their scores were rounded", bugs=("MXP-13",))
def rounds_scores(scores, self, logits_BTE):
    """Logits are float32, but the scores are cast before top-k."""
    return scores(self, logits_BTE).bfloat16().to(logits_BTE.dtype)


@broken(Router, "of_best_groups", "MOE-01e[groups]: their scores were rounded")
def adds_up_groups_in_bfloat16(of_best_groups, self, scores_BTE, number, chosen):
    """Scores are float32, and the two best of a group are added up in the dtype of the activations."""
    kept = of_best_groups(self, scores_BTE.bfloat16().to(scores_BTE.dtype), number, chosen)
    return scores_BTE.masked_fill(kept.isneginf(), -torch.inf)


@broken(Router, "gates", "MOE-01e[softmax]: gates under bfloat16 differs")
def rounds_gates(gates, self, scores_BTE, experts_BTK):
    """Gates are cast to the dtype of the activations before they are used."""
    return gates(self, scores_BTE, experts_BTK).bfloat16().to(scores_BTE.dtype)


with_attributes(
    "DeclaresARoundedSoftmaxRouter",
    "Declares that the weight of its softmax router is held in bfloat16, and holds it in float32.",
    "MOE-01e[softmax]: gates under bfloat16 differs",
    conventions={"softmax-router": "bfloat16-weight"},
)

with_attributes(
    "DeclaresARoundedSigmoidRouter",
    "The same of a sigmoid router.",
    "MOE-01e[sigmoid]: gates under bfloat16 differs",
    conventions={"sigmoid-router": "bfloat16-weight"},
)

with_attributes(
    "DeclaresARouterInTheActivationsDtype",
    "Declares a router in the dtype of the activations and has one in float32.",
    "MOE-01e[softmax]: gates under bfloat16 differs",
    conventions={"softmax-router": "activations"},
)


@derived("MOE-01e[softmax]: gates under bfloat16 differs", conventions={"softmax-router": "bfloat16-weight"})
class RoundsMoreThanItsWeight(_RoundsTheWeight):
    """Declares that only the router's weight is rounded; its gates are as well."""

    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        return super().weigh(chosen_BTK).bfloat16().to(chosen_BTK.dtype)


@derived("MOE-01e[sigmoid]: its best are among the first 6", conventions={"sigmoid-router": "bfloat16-weight"})
class ChoosesTheWorstOfRoundedScores(_RoundsTheWeight):
    """Declares a rounded weight, and the experts with the smallest scores win."""

    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(-scores_BTE)


@broken(Router, "choose", "MOE-01g[softmax]: a token goes to [0, 0, 0], expected 3 experts")
def masks_what_equals_the_best(choose, self, scores_BTE):
    """An iterative top-k masks by value: of equal scores, the first expert gets every slot."""
    left_BTE, found = scores_BTE.detach() + (0 if self.bias is None else self.bias), []
    for _ in range(self.moe.top_k):
        best_BT1 = left_BTE.max(-1, keepdim=True)
        found.append(best_BT1.indices)
        left_BTE = left_BTE.masked_fill(left_BTE == best_BT1.values, float("-inf"))
    return torch.cat(found, dim=-1)


@broken(Router, "weigh", "MOE-01g[every-expert]: y differs")
def drops_tokens_that_prefer_nobody(weigh, self, chosen_BTK):
    """A token whose scores are all equal is taken for padding and gets gates of zero."""
    shifted_BTK = chosen_BTK - chosen_BTK.amin(-1, keepdim=True)
    plain_BTK = weigh(self, chosen_BTK)
    return torch.where(shifted_BTK.sum(-1, keepdim=True) > 0, plain_BTK, shifted_BTK)
