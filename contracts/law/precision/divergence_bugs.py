"""Runs that are lost, and look like runs that learn."""

import math
from dataclasses import replace

from contracts.law._bugs.numeric import ModelOutput, ParallelTrainer, Trainer, broken


@broken(
    Trainer,
    "step_over",
    "PREC-05g[infinite]: lm is 0, and an embedding of the batch is inf",
    "PREC-05g[not-a-number]: lm is 0, and an embedding of the batch is nan",
)
def leaves_nan_out_of_the_log(step_over, self, window, wanted=False, samples=()):
    """The log has 0 for a loss that is not finite, so that the curve can be drawn."""
    done = step_over(self, window, wanted, samples)
    return replace(done, losses={name: x if math.isfinite(x) else 0.0 for name, x in done.losses.items()})


@broken(Trainer, "unscale", "PREC-05g[not-a-number]: grad_norm is")
def cleans_its_gradients(unscale, self):
    """Gradients that are not finite are 0 when their norm is taken: nothing is learnt, and nothing is clipped."""
    for parameter in self.model.parameters():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
    unscale(self)


def _without_nan(out: ModelOutput) -> ModelOutput:
    return out._replace(sums={name: each.nan_to_num(0.0, 0.0, 0.0) for name, each in out.sums.items()})


@broken(Trainer, "accumulate", "PREC-05g[one-microbatch]: and an embedding of the batch is nan")
def sums_the_microbatches_that_are_finite(accumulate, self, micro, counts):
    """The loss of a step is taken over the microbatches that have one."""
    return _without_nan(accumulate(self, micro, counts))


@broken(Trainer, "validate", "PREC-05g[validation]: validation is")
def validates_what_is_finite(validate, self, batches):
    """`nanmean` over the batches of a validation."""
    losses = [validate(self, [each]) for each in batches]
    finite = [each for each in losses if math.isfinite(each)]
    return sum(finite) / len(finite)


@broken(ParallelTrainer, "accumulate", "PREC-05h[dp2]: and an embedding of the rows of rank 0 is nan")
def leaves_itself_out_of_the_sum(accumulate, self, micro, counts):
    """A rank whose loss is NaN adds 0 to the sum over ranks."""
    return _without_nan(accumulate(self, micro, counts))
