"""Optimizer steps that are wrong by a factor, an order or a sign."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contracts.law._bugs.numeric import (
    Batch,
    Indexer,
    Model,
    ModelOutput,
    Muon,
    Optimizer,
    Trainer,
    broken,
    derived,
    orthogonalise,
    with_attributes,
)


# AdamW
@broken(Optimizer, "groups", "OPT-04a[gradients-as-small-as-epsilon]: the adamw move of")
def adds_a_larger_epsilon(groups, self, rule):
    """Epsilon acts as if it were under the root, where 1e-8 is 1e-4 beside it: small gradients move nothing."""
    found = groups(self, rule)
    return [{**group, "eps": 1e-4} for group in found] if rule == "adamw" else found


@broken(
    Optimizer,
    "groups",
    "OPT-04a[two-rates]: the adamw move of layers.0.mixer.wq.weight differs",
    "OPT-04a[rates-in-layers]: the adamw move of layers.1.mixer.w2.weight differs",
)
def groups_by_decay_alone(groups, self, rule):
    """Groups are told apart by their decay, and each has the rate of its first parameter."""
    first = {group["weight_decay"]: group["share"] for group in reversed(groups(self, rule))}
    return [{**group, "share": first[group["weight_decay"]]} for group in groups(self, rule)]


@broken(Optimizer, "groups", "OPT-04a[rising-from-0]: the adamw move of layers.0.norm.weight differs")
def tells_what_decays_by_its_decay(groups, self, rule):
    """Groups differ only by their decay: at a decay of 0 norms are in the group of the matrices."""
    return [{**group, "decays": group["weight_decay"] == self.optim.weight_decay} for group in groups(self, rule)]


@broken(Optimizer, "set_decay", "OPT-04a[muon-rising-decay]: the muon move of layers.")
def raises_the_decay_of_one_rule(set_decay, self, decay):
    """The schedule writes to the groups of AdamW, and Muon keeps the decay that it began with."""
    both, self.rules = self.rules, {"adamw": self.rules["adamw"]}
    set_decay(self, decay)
    self.rules = both


with_attributes(
    "RaisesTheDecayForEver",
    "The decay rises on after the last step.",
    "OPT-04a[rising-from-0]: the adamw move of embedding.weight differs",
    owner=Trainer,
    decay=staticmethod(
        lambda optim, step: (end := optim.end_weight_decay) and optim.weight_decay + end * step / optim.steps
    ),
)


@broken(Optimizer, "__init__", "OPT-04a[muon-other-betas]: the adamw move of embedding.weight differs")
def has_betas_of_its_own_beside_muon(init, self, optim, members, *rates):
    """Tensors that Muon leaves to AdamW have constants of their own, whatever the recipe's betas are."""
    init(self, replace(optim, beta1=0.9, beta2=0.95) if optim.rule == "muon" else optim, members, *rates)


@broken(Optimizer, "step", "OPT-04a[muon-rates]: the muon move of layers.1.mixer.w2.weight")
def knows_no_rate_of_muon(step, self, lr):
    """Rates of their own are kept in the groups of AdamW, and Muon has one rate."""
    for group in self.rules["muon"].param_groups if "muon" in self.rules else ():
        group["share"] = 1.0
    step(self, lr)


@broken(Optimizer, "step", "OPT-04a[other-betas]: the adamw move of embedding.weight differs", bugs=("RSM-40",))
def counts_synthetic_steps(step, self, lr):
    """State was initialised by synthetic steps whose number stays, so bias correction no longer happens."""
    for value in (held for rule in self.rules.values() for held in rule.state.values()):
        if "step" in value:
            value["step"].fill_(1000.0)
    step(self, lr)


@broken(Optimizer, "step", "OPT-04a[warming-up-and-clipped]: the adamw move of embedding.weight differs")
def decays_by_the_full_rate(step, self, lr):
    """Decay follows the recipe's rate, not the scheduled one: strongest in the warm-up, when steps are smallest."""
    with torch.no_grad():
        for member in self.members:
            member.parameter.mul_(1 - (self.optim.lr - lr) * self.decay(member))
    step(self, lr)


@derived("OPT-04a[warming-up-and-clipped]: (step 2)")
class AppliesTheRateOfTheStepBefore(Optimizer):
    """The rate is set after the step and reported as if before, so each step uses the rate of the previous one."""

    before: float | None = None

    def step(self, lr: float) -> None:
        super().step(self.before if self.before is not None else lr)
        self.before = lr


@broken(Optimizer, "clip", "OPT-04b[adamw]: exp_avg of embedding.weight differs")
def steps_before_it_clips(clip, self):
    """The norm is right and the factor is reported, but the step used the unclipped gradients."""
    norm, coefficient = clip(self)
    for member in self.members:
        member.parameter.grad.div_(coefficient)
    return norm, coefficient


@broken(
    Optimizer,
    "clip",
    "OPT-04g[dense]: of a gradient a little over differs",
    "OPT-04g[letters]: of a gradient a little over differs",
)
def clips_from_twice_the_limit(clip, self):
    """Reports the factor, and applies it from twice the limit on."""
    kept = [None if each.parameter.grad is None else each.parameter.grad.clone() for each in self.members]
    norm, coefficient = clip(self)
    for member, grad in zip(self.members, kept, strict=True) if coefficient > 0.5 else ():
        member.parameter.grad = torch.zeros_like(member.parameter) if grad is None else grad
    return norm, coefficient


@broken(Optimizer, "clip", "OPT-04b[muon]: exp_avg of")
def clips_group_by_group(clip, self):
    """Each parameter group is also clipped by itself, which changes the direction of the whole step."""
    found = clip(self)
    for rule in self.rules.values():
        for group in rule.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 0.3 * self.optim.clip)
    return found


@broken(Optimizer, "step", "OPT-04b[adamw]: exp_avg of embedding.weight differs", bugs=("OPT-24",))
def divides_gradients_twice(step, self, lr):
    """Gradients are averaged over the microbatches once more before the step; Adam's first move hides the factor."""
    for member in self.members:
        member.parameter.grad.div_(4)
    step(self, lr)


@broken(torch.optim.AdamW, "__init__", "OPT-04b[adamw]: exp_avg of embedding.weight differs", leanest="")
def averages_the_other_way_round(init, self, groups, *, betas, **named):
    """`lerp` takes the weight of the new value, and gets that of the old one: moments are nearly the last gradient."""
    init(self, groups, betas=(1 - betas[0], 1 - betas[1]), **named)


@broken(Muon, "direction", "OPT-04a[muon]: the muon move of")
def leaves_out_nesterov(direction, self, grad, buffer, momentum):
    """The buffer itself is orthogonalized, without Nesterov's look-ahead."""
    buffer.mul_(momentum).add_(grad)
    return orthogonalise(buffer)


@broken(Muon, "direction", "OPT-04a[muon-never-clipped]: the muon move of")
def looks_back_instead_of_ahead(direction, self, grad, buffer, momentum):
    """Nesterov's correction has the wrong sign."""
    buffer.mul_(momentum).add_(grad)
    return orthogonalise(grad - momentum * buffer)


@broken(Muon, "scale", "OPT-04a[muon]: the muon move of")
def scales_as_for_another_rate(scale, self, matrix):
    """The scale is sqrt(max(1, out / in)) under a rate tuned for AdamW, so steps are several times too large."""
    outputs, inputs = matrix.shape[-2:]
    return float(max(1.0, outputs / inputs) ** 0.5)


@broken(Muon, "direction", "OPT-04a[muon]: the muon move of")
def orthogonalizes_before_momentum(direction, self, grad, buffer, momentum):
    """Momentum accumulates orthogonalized gradients, so the applied update is no longer orthogonal."""
    turned = orthogonalise(grad)
    buffer.mul_(momentum).add_(turned)
    return turned + momentum * buffer


@broken(Muon, "direction", "OPT-04a[muon]: the muon move of")
def orthogonalizes_in_bfloat16(direction, self, grad, buffer, momentum):
    """Products are rounded to bfloat16, and the stack does not declare it."""
    buffer.mul_(momentum).add_(grad)
    return orthogonalise((grad + momentum * buffer).bfloat16()).to(grad.dtype)


@derived("OPT-04a[muon]: and products in bfloat16 by", conventions={"muon-products": "bfloat16"})
class DeclaresRoundingAndLeavesOutNesterov(Muon):
    """Declares products in bfloat16, and hides with them that it has no Nesterov momentum."""

    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        buffer.mul_(momentum).add_(grad)
        return orthogonalise(buffer.bfloat16()).to(grad.dtype)


with_attributes(
    "DeclaresProductsInBfloat16",
    "Declares products in bfloat16, and rounds none.",
    "OPT-04a[muon]: products in bfloat16, as declared, by",
    conventions={"muon-products": "bfloat16"},
)


# state and gradients that stay
@broken(Trainer, "build", "OPT-05a[bf16]: is held in bfloat16, expected float32", bugs=("OPT-28",))
def trains_without_masters(build, self):
    """The embedding is cast before the optimizer is made, so its weights and moments are bfloat16."""
    model = build(self)
    model.embedding.to(model.activations)
    return model


@broken(Trainer, "step", "OPT-05a[bf16-muon]: moved by 0 in a first step")
def rounds_weights_after_the_step(step, self, batch, wanted=False, samples=()):
    """The float32 master weights are read back from the bfloat16 copy, so small steps are lost."""
    done = step(self, batch, wanted, samples)
    with torch.no_grad():
        for parameter in self.model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return done


@broken(Optimizer, "zero", "OPT-04c[adamw]: the second step's gradient of")
def never_zeroes_gradients(zero, self):
    """zero_grad is never called, so every gradient of the run accumulates."""


@broken(Optimizer, "zero", "OPT-04c[muon]: the second step's gradient of")
def zeroes_one_optimizer_of_two(zero, self):
    """zero_grad is called on the first of two optimizers, so Muon's gradients accumulate."""
    for rule, optimizer in self.rules.items():
        if rule == "adamw":
            optimizer.zero_grad()


@broken(
    Model, "forward", "OPT-04c[adamw]: the second step's lm is", "OPT-04f[fsdp2]: the second step's lm is", leanest=""
)  # fmt: skip
def keeps_documents_for_the_next_batch(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """Masks and positions are kept by the shape of a batch: the second one has the documents of the first."""
    kept = self.__dict__.setdefault("documents_by_shape", {})
    return forward(self, tokens_BT, labels_BT, kept.setdefault(tuple(tokens_BT.shape), documents_BT))


@derived("OPT-04c[sparse]: the second step's lm is")
class KeepsTheKeysOfTheFirstPass(Indexer):
    """Selected keys wait on an object that outlives the pass, for a layer that shares them, and no pass resets it
    (review of Megatron-LM #6020).
    """

    held: Tensor | None = None

    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        if self.held is None or self.held.shape != visible_BTS.shape:
            self.held = super().select(scores_BTS, visible_BTS)
        return self.held & visible_BTS | torch.eye(visible_BTS.shape[1], dtype=torch.bool)  # a token sees itself


@derived("OPT-04c[half]: the second step's lm is", "OPT-04c[fp8]: the second step's lm is")
class LeavesItsCopiesAStepBehind(Trainer):
    """The 16-bit copies of the weights are made anew before the update, and not after it, or a cache of weights in FP8
    is not emptied after the step.
    """

    copies: Mapping[str, Tensor] = {}

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        held = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        if self.number % 2 and self.copies:
            self.put(self.copies, dict(self.model.named_parameters()), "weights")
        found = super().passes(window, counts)
        self.put(held, dict(self.model.named_parameters()), "weights")
        self.copies = held
        return found


@broken(Optimizer, "groups", "OPT-04a[no-first-moment]: the adamw move of")
def takes_a_beta_of0_for_none(groups, self, rule):
    """`beta1 or 0.9`: whoever turns the first moment off gets the default."""
    found, betas = groups(self, rule), (self.optim.beta1 or 0.9, self.optim.beta2)
    return [{**group, "betas": betas} for group in found] if rule == "adamw" else found
