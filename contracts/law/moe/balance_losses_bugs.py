"""Auxiliary losses with one bug each."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.law._bugs import written_out
from contracts.law._bugs.numeric import MoE, Output, Packing, Router, State, broken, derived, with_attributes


@broken(Router, "balance_loss", "MOE-05a[balanced-k-2]: the balance loss is 2, expected 1", bugs=("AUX-09",))
def adds_up_to_top_k(balance_loss, self, probabilities_BTE, experts_BTK):
    """f divides assignments by tokens instead of by assignments, so it sums to k and scales the loss by k."""
    return balance_loss(self, probabilities_BTE, experts_BTK) * self.moe.top_k


@broken(Router, "balance_loss", "MOE-05a[balanced-k-1]: the balance loss is 0.0833")
def forgets_the_number_of_experts(balance_loss, self, probabilities_BTE, experts_BTK):
    """The factor E is missing, so the loss of a balanced batch shrinks with every expert added."""
    return balance_loss(self, probabilities_BTE, experts_BTK) / self.moe.experts


@broken(
    Router, "probabilities", "MOE-05a[collapsed-sigmoids-k-1]: the balance loss is 9, expected 2.57", bugs=("AUX-10",)
)
def normalises_only_above_one(probabilities, self, logits_BTE):
    """The loss follows the rule for gates, which leaves a lone sigmoid (k = 1) unnormalised."""
    if self.moe.score == "sigmoid" and self.moe.top_k == 1:
        return logits_BTE.sigmoid()
    return probabilities(self, logits_BTE)


@broken(Router, "probabilities", "MOE-05a[balanced-sigmoids]: expected 1")
def leaves_sigmoids_unnormalised(probabilities, self, logits_BTE):
    """The probabilities are raw sigmoids: pushing every score down lowers the loss and balances nothing."""
    return probabilities(self, logits_BTE) if self.moe.score == "softmax" else logits_BTE.sigmoid()


@broken(Router, "probabilities", "MOE-05a[collapsed-sigmoids]: expected 2.25")
def takes_softmax_for_sigmoids(probabilities, self, logits_BTE):
    """The loss uses softmax probabilities although the gates are sigmoids."""
    return logits_BTE.softmax(-1)


def _limited(self, logits_BTE):
    """Logits of -inf outside of the groups that are chosen."""
    return logits_BTE if self.moe.groups is None else self.of_best_groups(logits_BTE, *self.moe.groups)


@broken(Router, "z_loss", "MOE-05b[groups]: the z loss is", "MOE-02b[groups]: gradient of mixer.router.weight differs")
def squares_the_sum_of_chosen_groups(z_loss, self, logits_BTE):
    """The z loss is of the logits that the mask of the groups has left."""
    return z_loss(self, _limited(self, logits_BTE))


@broken(Router, "probabilities", "MOE-05a[groups]: the balance loss is 5.14285714, expected 2.25")
def shares_within_the_chosen_groups(probabilities, self, logits_BTE):
    """P is normalised over the chosen groups: what lies in another group is never drawn upon."""
    return probabilities(self, _limited(self, logits_BTE))


@broken(
    Router, "balance_loss", "MOE-05a[groups-in-f]: the balance loss is 2.43243243, expected 2.10810811 or 2.27027027"
)
def counts_chosen_groups(balance_loss, self, probabilities_BTE, experts_BTK):
    """f counts each expert of a group that is chosen, as the mask of the groups has them."""
    if self.moe.groups is not None:
        size = self.moe.experts // self.moe.groups[0]
        experts_BTK = experts_BTK[..., :1] // size * size + torch.arange(size)
    return balance_loss(self, probabilities_BTE, experts_BTK)


@broken(Router, "balance_loss", "MOE-05a[collapsed-k-2]: the balance loss is 6, expected 3")
def looks_at_chosen_probabilities_only(balance_loss, self, probabilities_BTE, experts_BTK):
    """P is taken from the gates: an expert that is never chosen has none, so nothing draws tokens to it."""
    chosen = F.one_hot(experts_BTK, self.moe.experts).sum(-2)
    masked = probabilities_BTE * chosen
    return balance_loss(self, masked / masked.sum(-1, keepdim=True), experts_BTK)


@broken(
    Router,
    "balance_loss",
    "MOE-05a[sequences-apart]: the balance loss is 1, expected 3",
    "MOE-05d[softmax-1-3]: loss aux differs",
)
def balances_the_batch(balance_loss, self, probabilities_BTE, experts_BTK):
    """Load and probability are taken over the micro batch, so the micro batch size becomes part of the objective."""
    return balance_loss(self, probabilities_BTE.flatten(0, 1)[None], experts_BTK.flatten(0, 1)[None])


with_attributes(
    "DeclaresABalanceOfMicrobatches",
    "Declares that its balance loss is over a microbatch, and balances each sequence.",
    "MOE-05a[sequences-apart]: the balance loss is 3, expected 1",
    conventions={"balance-over": "microbatch"},
)

with_attributes(
    "DeclaresABalanceOfTheGlobalBatch",
    "Declares that its balance loss is over the global batch, and balances each sequence.",
    "MOE-05a[one-of-three-balanced]: the balance loss is 2.33333333, expected 1.35555556",
    conventions={"balance-over": "global-batch"},
)


@broken(Router, "probabilities", "MOE-05a[faint-sigmoids]: the balance loss is 5.25")
def adds_an_epsilon_to_the_sum_of_scores(probabilities, self, logits_BTE):
    """An epsilon of 1e-20 under the sum of sigmoids, below which a router can push them all (OLMo-core #255)."""
    scores_BTE = logits_BTE.sigmoid()
    return scores_BTE / (scores_BTE.sum(-1, keepdim=True) + 1e-20)


@broken(Router, "balance_loss", "MOE-05a[balanced-k-2]: the balance loss is 2, expected 1")
def adds_up_sequences(balance_loss, self, probabilities_BTE, experts_BTK):
    """The loss is a sum over the sequences of the micro batch instead of a mean."""
    return balance_loss(self, probabilities_BTE, experts_BTK) * len(experts_BTK)


@broken(Router, "balance_loss", "MOE-05d[softmax-2-2]: loss aux differs", bugs=("AUX-05",))
def divides_by_sequences_twice(balance_loss, self, probabilities_BTE, experts_BTK):
    """A per-sequence loss is divided by the micro batch size once more: doubling the size halves the coefficient."""
    return balance_loss(self, probabilities_BTE, experts_BTK) / len(experts_BTK)


@broken(Router, "z_loss", "MOE-05b[sigmoids]: the z loss is")
def takes_z_of_scores(z_loss, self, logits_BTE):
    """The z loss is taken of sigmoid scores instead of logits: no sigmoid is large, so it restrains no logit."""
    return z_loss(self, self.scores(logits_BTE))


@broken(Router, "z_loss", "MOE-05b[two-of-twelve]: the z loss is")
def takes_z_of_the_chosen(z_loss, self, logits_BTE):
    """The sum runs over the chosen logits only, so the others may grow."""
    return z_loss(self, logits_BTE.topk(self.moe.top_k, dim=-1).values)


@broken(Router, "z_loss", "MOE-05b[shifted]: the z loss is")
def forgets_the_square(z_loss, self, logits_BTE):
    """The log is not squared, so the loss pushes logits down without end."""
    return logits_BTE.logsumexp(-1).mean()


@broken(Router, "z_loss", "MOE-05b[mean-over-tokens]: the z loss is")
def squares_the_mean(z_loss, self, logits_BTE):
    """The loss is the square of the mean instead of the mean of squares: equal while all tokens are alike."""
    return logits_BTE.logsumexp(-1).mean().square()


@broken(Router, "z_loss", "MOE-05b[far-from-0]: the z loss is inf")
def overflows_the_z_loss(z_loss, self, logits_BTE):
    """The log of a sum of exponentials is computed naively: infinite where the loss is needed most."""
    return logits_BTE.exp().sum(-1).log().square().mean()


@broken(Router, "z_loss", "MOE-05b[faint]: the z loss is")
def adds_up_tokens(z_loss, self, logits_BTE):
    """The loss is a sum over the tokens of a sequence, so its coefficient grows with the sequence length."""
    return z_loss(self, logits_BTE) * logits_BTE.shape[1]


@broken(Router, "balance_loss", "MOE-05c[softmax-aux]: gradient of")
def detaches_the_balance_loss(balance_loss, self, probabilities_BTE, experts_BTK):
    """The balance loss is logged and has no gradient."""
    return balance_loss(self, probabilities_BTE.detach(), experts_BTK)


@broken(Router, "z_loss", "MOE-05c[sigmoid-z]: gradient of")
def detaches_the_z_loss(z_loss, self, logits_BTE):
    """The z loss is logged and has no gradient."""
    return z_loss(self, logits_BTE.detach())


@broken(Router, "forward", "MOE-05c[both]: gradient of norm.weight differs")
def keeps_the_losses_from_the_model(forward, self, x_BTD):
    """The losses are computed from a detached input: the router learns to balance, the layers below it do not."""
    routing = forward(self, x_BTD)
    return routing._replace(losses=forward(self, x_BTD.detach()).losses)


@broken(MoE, "weight_of", "MOE-05c[both]: gradient of mixer.router.weight differs")
def swaps_the_coefficients(weight_of, recipe, loss):
    """Each loss has the other's coefficient."""
    return weight_of(recipe, "z" if loss == "aux" else "aux")


@broken(Router, "forward", "MOE-05c[sigmoid-aux]: gradient of mixer.router.weight differs")
def adds_the_balance_loss_twice(forward, self, x_BTD):
    """The loss is added by hand and again by a scaler that was meant to replace this; the logged value is right."""
    routing = forward(self, x_BTD)
    twice = routing.losses["aux"] * 2 - routing.losses["aux"].detach()
    return routing._replace(losses=routing.losses | {"aux": twice})


@broken(Router, "balance_loss", "MOE-05c[sigmoid-aux-k-1]: loss aux differs")
def scales_the_balance_loss(balance_loss, self, probabilities_BTE, experts_BTK):
    """route_scale multiplies the scores before both gates and loss are computed from them."""
    return balance_loss(self, probabilities_BTE, experts_BTK) * self.moe.route_scale


@broken(Router, "z_loss", "MOE-05d[sigmoid-one-by-one]: loss z differs")
def divides_z_by_the_micro_batch(z_loss, self, logits_BTE):
    """The z loss is a mean over tokens, divided by the number of sequences as well."""
    return z_loss(self, logits_BTE) / len(logits_BTE)


@derived("MOE-05e[softmax]: in the second call loss aux differs", bugs=("AUX-14",))
class AddsUpInATracker(MoE):
    """Every forward pass adds the losses to a process-wide table, so a recomputed loss is logged twice."""

    tracked: ClassVar[dict[str, Tensor]] = {}

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        for name, loss in out.losses.items():
            self.tracked[name] = self.tracked.get(name, torch.zeros_like(loss)) + loss.detach()
        shown = {name: loss - loss.detach() + self.tracked[name] for name, loss in out.losses.items()}
        return out._replace(losses=shown)


@broken(Router, "logits", "MOE-05e[sigmoid]: in the second call")
def jitters_always(logits, self, x_BTD):
    """Input jitter stays on in evaluation, and draws new numbers when a block is recomputed."""
    return logits(self, x_BTD * (0.99 + 0.02 * torch.rand_like(x_BTD)))


@broken(
    Router,
    "probabilities",
    "MOE-05h[sigmoids]: under bfloat16 the aux loss is",
    "MOE-05h[softmax]: under bfloat16 the aux loss is",
    bugs=("AUX-17",),
)
def balances_by_half_scores(probabilities, self, logits_BTE):
    """The scores that the balance loss reads are cast to the dtype of the activations."""
    return probabilities(self, logits_BTE).bfloat16().to(logits_BTE.dtype)


@broken(
    Router,
    "probabilities",
    "MOE-05h[sigmoids-of-half-logits]: under bfloat16 the aux loss is",
    "MOE-05h[softmax-of-half-logits]: under bfloat16 the aux loss is",
)
def balances_in_the_dtype_of_logits(probabilities, self, logits_BTE):
    """Scores are cast where logits are not float32, and those are where the router's product is not."""
    scores_BTE = probabilities(self, logits_BTE)
    return scores_BTE if self.product is None else scores_BTE.to(self.product).to(scores_BTE.dtype)


@broken(
    Router,
    "logits",
    "MOE-05h[softmax-of-half-logits]: with a router's product in bfloat16 and in float32 the aux loss is",
)
def multiplies_in_float32_whatever_is_asked(logits, self, x_BTD):
    """The dtype of the router's product is read and not used."""
    self.product = None
    return logits(self, x_BTD)


@broken(Router, "z_loss", "MOE-05h[z]: under bfloat16 the z loss is", bugs=("AUX-17",))
def takes_z_of_half_logits(z_loss, self, logits_BTE):
    """The balance loss is float32 again; the z loss still takes the logarithm in the activations' dtype."""
    return z_loss(self, logits_BTE.bfloat16())


@broken(
    Router,
    "probabilities",
    "MOE-05a[sigmoids-far-from-0]: the balance loss is nan, expected 6",
    "MOE-05a[far-from-0]: the balance loss is nan, expected 12",
)
def writes_probabilities_out(probabilities, self, logits_BTE):
    """The balance loss normalises by itself, without taking the largest logit out: NaN where exp overflows."""
    if self.moe.score == "softmax":
        return written_out.softmax(logits_BTE)
    scores_BTE = written_out.sigmoid(logits_BTE)
    return scores_BTE / scores_BTE.sum(-1, keepdim=True)
