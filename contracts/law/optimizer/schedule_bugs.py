"""Schedules that count the wrong steps or are one step off, and clipping that makes gradients larger."""

from dataclasses import replace

import torch

from contracts.contract import mutant
from contracts.law._bugs.numeric import Optimizer, Reference, Trainer, broken, derived, learning_rate, with_attributes
from contracts.spec import Optim, Session, refuse
from contracts.spec import Trained as Run

StartsAtZero = with_attributes(
    "StartsAtZero",
    "The scheduler steps after the optimizer and counts from 0, so the first step moves nothing.",
    "OPT-05b[cosine]: the rate of step 1 is 0, expected 0.5",
    owner=Trainer,
    rate=staticmethod(
        lambda optim, step: learning_rate(optim, step - 1) if optim.warmup else learning_rate(optim, step)
    ),
)

with_attributes(
    "RunsOneStepAhead",
    "Over-correction: the scheduler also steps once before the first step.",
    "OPT-05b[linear]: the rate of step 1 is 1, expected 0.5",
    owner=Trainer,
    rate=staticmethod(lambda optim, step: learning_rate(optim, step + 1)),
)

with_attributes(
    "ForgetsTheWarmupInTheLength",
    "Decay is as long as the whole run and starts after the warm-up, so the rate is above min_lr at the end.",
    "OPT-05b[cosine]: the rate of step 3 is",
    owner=Trainer,
    rate=staticmethod(lambda optim, step: learning_rate(replace(optim, steps=optim.steps + optim.warmup), step)),
)


def _over_all(optim: Optim, step: int) -> float:
    if optim.schedule != "WSD" or step <= optim.warmup:
        return learning_rate(optim, step)
    start = optim.steps - optim.steps // 5
    return optim.lr if step <= start else optim.lr - (optim.lr - optim.min_lr) * (step - start) / optim.steps


with_attributes(
    "DividesWsdByTheWholeRun",
    "The progress of the last phase is divided by all steps instead of the phase's, so the rate ends high.",
    "OPT-05b[WSD]: expected 0.6 (WSD)",
    owner=Trainer,
    bugs=("OPT-10",),
    rate=staticmethod(_over_all),
)

with_attributes(
    "RampsTheWrongWay",
    "The decay uses 1 - u instead of u.",
    "OPT-05b[no-warm-up]: the rate of step 1 is 0.25, expected 0.75",
    owner=Trainer,
    bugs=("OPT-09",),
    rate=staticmethod(
        lambda optim, step: (
            optim.min_lr + optim.lr - learning_rate(optim, step) if step > optim.warmup else learning_rate(optim, step)
        )
    ),
)


def _unguarded(optim: Optim, step: int) -> float:
    if step <= optim.warmup:
        return learning_rate(optim, step)
    return optim.lr - (optim.lr - optim.min_lr) * (step - optim.warmup) / (optim.steps - optim.warmup)


with_attributes(
    "ClimbsWhereThereIsNoDecay",
    "A warm-up longer than the run makes the decay's length negative: the rate continues to rise, above lr.",
    "OPT-05b[warm-up-longer-than-the-run]: the rate of step 7 is 0.7666667",
    owner=Trainer,
    bugs=("OPT-11",),
    rate=staticmethod(_unguarded),
)

with_attributes(
    "RaisesTheWarmUpToTheFloor",
    "The floor of the decay holds in the warm-up too: the first steps are as long as the last ones.",
    "OPT-05b[warm-up-below-the-floor]: the rate of step 1 is 0.5, expected 0.2",
    "OPT-05b[nothing-to-decay]: the rate of step 1 is 0.5, expected 0.25",
    owner=Trainer,
    rate=staticmethod(lambda optim, step: max(optim.min_lr, learning_rate(optim, step))),
)

with_attributes(
    "BeginsTheWarmUpAtTheFloor",
    "Over-correction: the warm-up rises from min_lr to lr and not from 0.",
    "OPT-05b[warm-up-below-the-floor]: the rate of step 1 is 0.575, expected 0.2",
    owner=Trainer,
    rate=staticmethod(
        lambda optim, step: (
            optim.min_lr + (optim.lr - optim.min_lr) * step / optim.warmup
            if step <= optim.warmup
            else learning_rate(optim, step)
        )
    ),
)

with_attributes(
    "StopsAtTheEnd",
    "Beyond the planned steps the rate is 0, so a prolonged run learns nothing.",
    "OPT-05b[constant]: the rate of step 6 is 0, expected 0.8",
    owner=Trainer,
    rate=staticmethod(lambda optim, step: 0.0 if step > optim.steps else learning_rate(optim, step)),
)


@broken(Trainer, "step", "OPT-05c[microbatches-3]: the rate of step 2 is", bugs=("OPT-08",))
def counts_microbatches(former, self, batch, wanted=False, samples=()):
    """The scheduler steps with every backward pass."""
    parts = self.execution.microbatches
    self.rate = lambda optim, step: learning_rate(optim, (step - 1) * parts + 1)
    return former(self, batch, wanted, samples)


with_attributes(
    "StepsTheSchedulerTwice",
    "The scheduler is prepared for two processes and wrapped again, so it steps twice for each optimizer step.",
    "OPT-05c[more-sequences]: the rate of step 1 is 1 with 1 microbatches of 2",
    owner=Trainer,
    bugs=("OPT-07",),
    rate=staticmethod(lambda optim, step: learning_rate(optim, 2 * step)),
)


# clipping
@broken(Optimizer, "coefficient", "OPT-05d[below-the-limit]: at a limit of 10000, expected 1")
def scales_gradients_up(coefficient, self, norm):
    """clip / norm has no upper bound, so small gradients are scaled up to the limit."""
    return self.optim.clip / (norm + 1e-6)


@broken(Optimizer, "coefficient", "OPT-05d[clipped]: were multiplied by 1 at a limit of 0.5", bugs=("CLP-05",))
def never_clips(coefficient, self, norm):
    """max instead of min."""
    return max(1.0, coefficient(self, norm))


@broken(Optimizer, "coefficient", "OPT-05d[no-limit]: were multiplied by 0 at a limit of 0, expected 1")
def takes_no_limit_for_zero(coefficient, self, norm):
    """A limit of 0 clips every gradient to nothing."""
    return min(1.0, self.optim.clip / (norm + 1e-6))


@broken(Optimizer, "clip", "OPT-05d[clipped-under-muon]: that of its gradients")
def measures_one_optimizer_of_two(clip, self):
    """The norm covers the first optimizer's parameters only."""
    adamw = [parameter for group in self.rules["adamw"].param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(adamw, self.optim.clip))
    return norm, self.coefficient(norm)


@broken(Optimizer, "clip", "OPT-05d[tied]: that of its gradients")
def counts_a_tied_gradient_twice(clip, self):
    """A tied tensor appears under both of its names, so its gradient counts twice in the norm."""
    grad = self.members[0].parameter.grad
    norm, coefficient = clip(self)
    twice = (norm**2 + float(grad.norm() / coefficient) ** 2) ** 0.5
    return twice, coefficient


with_attributes(
    "DeclaresAFirstStepAtZero",
    "Declares that its schedule counts from step 0, and counts from 1: a resumed or compared run is a step off.",
    "OPT-05b[cosine]: the rate of step 1 is 0.5, expected 0 ",
    conventions={"first-rate": "step-0"},
)


@derived("OPT-05b[no-warm-up]: the rate of step 1 is 0.75, expected 1 ", conventions={"first-rate": "step-0"})
class IsTwoStepsBehind(Trainer):
    """Declares that it counts from step 0; the scheduler steps late once more."""

    rate = staticmethod(lambda optim, step: learning_rate(optim, max(step - 2, 1)))


with_attributes(
    "DeclaresAWarmUpFromTheMinimum",
    "Declares that a warm-up begins at min_lr, and begins at 0.",
    "OPT-05b[WSD]: the rate of step 1 is 0.5, expected 0.6",
    conventions={"warm-up-from": "min-lr"},
)

with_attributes(
    "DeclaresARefusal",
    "Declares that a warm-up as long as the run is refused, and trains.",
    "OPT-05b[warm-up-to-the-end]: was accepted, expected a refusal",
    conventions={"warm-up-without-decay": "refused"},
)


@mutant(of="OPT-05b", case="warm-up-longer-than-the-run", says="does not name it")
class RefusesWithoutTheCause(Reference):
    """Refuses such a run as declared, and does not say why."""

    conventions = {"warm-up-without-decay": "refused"}

    def train(self, session: Session) -> Run:
        if session.recipe.optim.warmup >= session.recipe.optim.steps:
            raise refuse("optim", "as given", "is not supported", "change it")
        return super().train(session)


with_attributes(
    "CountsFromOneAllTheSame",
    "Declares that its schedule counts from step 0, and counts from 1.",
    "OPT-05c[more-sequences]: expected 0.0",
    conventions={"first-rate": "step-0"},
)


@derived(
    "OPT-05e[WSD]: step 9 of WSD reports a rate of 0.075 and shrinks an unused row by",
    "OPT-05e[linear]: step 3 of linear reports a rate of 0.1 and shrinks an unused row by",
)
class LeavesTheRateOfThePeak(Optimizer):
    """A wrapper copied the groups at the end of the warm-up; the scheduler continues with those that nobody steps."""

    peak = 0.0

    def step(self, lr: float) -> None:
        self.peak = max(self.peak, lr)
        super().step(self.peak)


@derived("OPT-05e[down-to-0]: step 6 of linear reports a rate of 0 and shrinks an unused row by that")
class TakesARateOfZeroForNone(Optimizer):
    """`if lr:` before the groups are written: after the end of the schedule the run continues at its last rate."""

    last = 0.0

    def step(self, lr: float) -> None:
        self.last = lr or self.last
        super().step(self.last)


@broken(
    Optimizer, "step", "OPT-05e[cosine]: step 1 of cosine reports a rate of 0.0625 and moves layers.0.norm.weight by"
)
def leaves_groups_at_the_default(step, self, lr):
    """The warm-up is applied to the group that decays; norms take the full rate from the first step."""
    for rule in self.rules.values():
        for group in rule.param_groups[1:]:
            group["lr"] = self.optim.lr
        rule.param_groups[0]["lr"] = lr
        rule.step()


with_attributes(
    "DeclaresARateBehind",
    "Declares that after the warm-up each step has the rate of the step before, and has its own.",
    "OPT-05b[linear]: the rate of step 3 is 0.8, expected 1 ",
    conventions={"last-rate": "step-before"},
)

with_attributes(
    "EndsAtTheMinimumAllTheSame",
    "The same, whatever the microbatches.",
    "OPT-05c[more-sequences]: expected 1.0",
    conventions={"last-rate": "step-before"},
)


@broken(Optimizer, "clip", "OPT-05d[clipped]: gradients were multiplied by another number than", bugs=("CLP-05",))
def reports_a_factor_and_applies_none(clip, self):
    """The factor goes into the log, and the gradients that it is for are clipped copies that nobody reads."""
    held = {member.name: member.parameter.grad.clone() for member in self.members if member.parameter.grad is not None}
    norm, coefficient = clip(self)
    for member in self.members:
        if member.name in held:
            member.parameter.grad.copy_(held[member.name])
    return norm, coefficient
