"""Gates that are normalised, scaled, paired or detached wrongly."""

import torch
from torch import Tensor, nn

from contracts.law._bugs import written_out
from contracts.law._bugs.numeric import Parts, Router, broken, derived, mutant, with_attributes
from contracts.spec import Recipe


@broken(Router, "gates", "MOE-01c[softmax]: has gate", bugs=("AUX-18",))
def leaves_gates_unnormalised(gates, self, scores_BTE, experts_BTK):
    """Softmax runs over all experts without renormalising over the chosen, so the gates sum to less than the scale."""
    return scores_BTE.softmax(-1).gather(-1, experts_BTK) * self.moe.route_scale


@broken(Router, "weigh", "MOE-01c[sigmoid]: has gate", bugs=("AUX-18",))
def leaves_sigmoids_unnormalised(weigh, self, chosen_BTK):
    """Sigmoid gates are not divided by their sum."""
    return chosen_BTK


@broken(
    Router,
    "weigh",
    "MOE-01h[one-of-twelve]: the gates of token 0 are [nan",
    "MOE-01c[sigmoid-alone]: has gate 1.0",
    "MOE-01c[softmax-alone]: has gate 1.0",
    "MOE-01f[softmax-1-of-12]: gradient of mixer.router.weight differs",
)
def normalises_the_lone_gate(weigh, self, chosen_BTK):
    """Over-correction: a lone score is divided by its own sum, which makes it the constant 1, so the router never
    learns.
    """
    return chosen_BTK / chosen_BTK.sum(-1, keepdim=True)


@broken(Router, "weigh", "MOE-01c[sigmoid-faint]: has gate")
def adds_a_large_epsilon(weigh, self, chosen_BTK):
    """An epsilon of 1e-6 under the sum makes the gates of faint scores vanish."""
    return chosen_BTK / (chosen_BTK.sum(-1, keepdim=True) + 1e-6)


@broken(Router, "weigh", "MOE-01c[sigmoid-fainter]: has gate")
def clamps_the_sum_of_gates(weigh, self, chosen_BTK):
    """The sum of the chosen sigmoids is 1e-20 at least, and gates of fainter ones vanish."""
    return chosen_BTK / chosen_BTK.sum(-1, keepdim=True).clamp_min(1e-20)


@broken(Router, "gates", "MOE-01c[softmax-scaled]: has gate 0.125")
def drops_the_scale(gates, self, scores_BTE, experts_BTK):
    """route_scale is read for sigmoid only, or not at all."""
    return gates(self, scores_BTE, experts_BTK) / self.moe.route_scale


@broken(Router, "gates", "MOE-01c[softmax-alone-scaled]: has gate 0.75, expected 1.5")
def leaves_the_lone_share_as_it_is(gates, self, scores_BTE, experts_BTK):
    """A lone gate is the share of a softmax over all experts, on a way past the scale."""
    alone = self.moe.top_k == 1 and self.moe.score == "softmax"
    return gates(self, scores_BTE, experts_BTK) / (self.moe.route_scale if alone else 1.0)


@broken(Router, "gates", "MOE-01c[groups-scaled]: has gate 0.25", "MOE-02b[groups]: y differs")
def drops_the_scale_beside_groups(gates, self, scores_BTE, experts_BTK):
    """The function that limits a choice to groups has gates of its own, which nobody scales."""
    return gates(self, scores_BTE, experts_BTK) / (self.moe.route_scale if self.moe.groups else 1.0)


@broken(Router, "weigh", "MOE-01c[sigmoid-scaled]: has gate", "BLK-01h[latent]: the loss is")
def scales_twice(weigh, self, chosen_BTK):
    """Over-correction: both the router and the combine apply route_scale."""
    return weigh(self, chosen_BTK) * self.moe.route_scale


@derived("MOE-01c[softmax-scaled]: has gate")
class ScalesBeforeNormalising(Router):
    """The scale is applied before the softmax, where it acts as a temperature."""

    def scores(self, logits_BTE: Tensor) -> Tensor:
        return super().scores(logits_BTE) * self.moe.route_scale

    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return self.weigh(scores_BTE.gather(-1, experts_BTK))


@broken(Router, "weigh", "MOE-01c[sigmoid]: has gate")
def softmax_of_sigmoids(weigh, self, chosen_BTK):
    """Scores that are sigmoids already go through a softmax."""
    return chosen_BTK.softmax(-1)


@broken(Router, "weigh", "MOE-01c[softmax-far-from-0]: has gate nan")
def overflows_the_softmax(weigh, self, chosen_BTK):
    """The softmax does not subtract the largest logit."""
    raw = chosen_BTK.exp()
    return raw / raw.sum(-1, keepdim=True)


@derived("MOE-01c[softmax]: has gate")
class PairsGatesWithOtherSlots(Router):
    """Experts are sorted by number while gates stay sorted by size: the gates sum up right and the output is wrong."""

    def choose(self, scores_BTE: Tensor) -> Tensor:
        return super().choose(scores_BTE).sort(-1).values

    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().gates(scores_BTE, experts_BTK).sort(-1, descending=True).values


@broken(Router, "gates", "MOE-01c[bias]: has gate", "MOE-01d[up]: on every selection bias y differs")
def weighs_with_the_bias(gates, self, scores_BTE, experts_BTK):
    """Gates are gathered from the biased scores that chose the experts."""
    biased = scores_BTE if self.bias is None else scores_BTE + self.bias
    return gates(self, biased, experts_BTK)


@derived("MOE-01d[down]: mixer.router.bias has a gradient")
class LearnsTheBias(Router):
    """The bias is a parameter, so the optimizer moves and decays what the balance rule moves."""

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


@mutant(of="BLK-01h", case="latent", says="the gradient of")
@broken(Router, "gates", "MOE-01f[softmax]: gradient of mixer.router.weight differs", bugs=("SP-18",))
def detaches_gates(gates, self, scores_BTE, experts_BTK):
    """Gates leave the graph, as through a gather without a gradient, so only the balance loss trains the router."""
    return gates(self, scores_BTE.detach(), experts_BTK)


@broken(Router, "weigh", "MOE-01f[sigmoid-with-bias]: gradient of mixer.router.weight differs")
def detaches_the_norm(weigh, self, chosen_BTK):
    """The sum that gates are divided by is treated as a constant."""
    if self.moe.score == "softmax" or self.moe.top_k == 1:
        return weigh(self, chosen_BTK)
    return chosen_BTK / chosen_BTK.sum(-1, keepdim=True).detach()


@broken(Router, "weigh", "MOE-01f[softmax]: gradient of mixer.router.weight differs")
def gives_logits_the_gates_gradient(weigh, self, chosen_BTK):
    """The backward of the normalisation is skipped, as in a fused router with the backward of a gather."""
    gates = weigh(self, chosen_BTK)
    return gates.detach() + chosen_BTK - chosen_BTK.detach()


@broken(
    Router,
    "forward",
    "MOE-01d[up]: on every selection bias loss aux differs",
    "MOE-05a[bias-in-f]: expected 0.75 or 2.25",
    "MOE-05a[bias-not-in-p]: expected 2.25",
)
def balances_biased_scores(forward, self, x_BTD):
    """The loss's probabilities include the bias, so two rules pull at one score."""
    routing = forward(self, x_BTD)
    scores_BTE = self.logits(x_BTD).sigmoid() + self.bias
    biased = scores_BTE / scores_BTE.sum(-1, keepdim=True)
    return routing._replace(losses=routing.losses | {"aux": self.balance_loss(biased, routing.experts_BTK)})


with_attributes(
    "DeclaresAnEpsilon",
    "Declares 1e-20 in the sum of the chosen sigmoids and divides by the sum without it.",
    "MOE-01c[sigmoid-faint]: has gate",
    conventions={"gate-sum": "1e-20"},
)


@broken(Router, "scores", "MOE-01c[sigmoid-far-from-0]: expected")
def writes_sigmoids_out(scores, self, logits_BTE):
    """A fused router computes exp(x) / (1 + exp(x)), which is NaN where exp overflows."""
    return written_out.sigmoid(logits_BTE) if self.moe.score == "sigmoid" else logits_BTE


@broken(
    Router,
    "weigh",
    "MOE-01h[with-bias]: the gates of token 0 are [nan",
    "MOE-01h[sigmoid]: the gates of token 0 are [nan",
)
def divides_scores_by_nothing(weigh, self, chosen_BTK):
    """A port of the router leaves out the 1e-20 in the sum of sigmoids, which nothing but a faint token needs."""
    if self.moe.score == "softmax" or self.moe.top_k == 1:
        return weigh(self, chosen_BTK)
    return chosen_BTK / chosen_BTK.sum(-1, keepdim=True)


@broken(Router, "probabilities", "MOE-01h[with-losses]: aux is not finite")
def balances_scores_of_nothing(probabilities, self, logits_BTE):
    """Gates are safe from 0 / 0, and the probabilities of the balance loss are not."""
    if self.moe.score == "softmax":
        return probabilities(self, logits_BTE)
    scores_BTE = logits_BTE.sigmoid()
    return scores_BTE / scores_BTE.sum(-1, keepdim=True)


@broken(Router, "choose", "MOE-01h[sigmoid]: a token goes to [0, 0, 0], expected 3 experts")
def sends_faint_tokens_to_the_first_expert(choose, self, scores_BTE):
    """Against 0 / 0 a token without scores is called unrouted: all of its slots go to expert 0."""
    experts_BTK = choose(self, scores_BTE)
    return experts_BTK.masked_fill(~scores_BTE.detach().any(-1, keepdim=True), 0)
