"""Validations that leave something behind in the run, or report another loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from contracts.law._bugs.numeric import (
    IGNORED,
    Batch,
    Fp8Matmul,
    ParallelTrainer,
    Router,
    Trainer,
    broken,
    derived,
    with_attributes,
)
from contracts.stacks.reference.answers import training


@broken(Trainer, "validate", "OPT-06a[dropout]: with a validation after step 1, step 2: losses is", bugs=("RSM-58",))
def stays_in_evaluation(validate, self, batches):
    """No train() after the validation: nothing is dropped for the rest of the run."""
    found = validate(self, batches)
    self.model.eval()
    return found


@derived("OPT-06a[selection-bias]: step 2: the buffer layers.1.mixer.router.bias differs", leanest="")
class CountsTheTokensOfAValidation(Trainer):
    """A router counts in every forward pass, and its bias moves by the tokens of the validation too."""

    waiting: dict[str, Tensor] | None = None

    def validate(self, batches: Sequence[Batch]) -> float:
        with torch.no_grad():
            seen = [self.model(*each).seen for each in batches]
        self.waiting = self.total([{name: each for name, each in one.items() if "counts" in name} for one in seen])
        return super().validate(batches)

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        waiting, self.waiting = self.waiting or {}, None
        super().move_biases({name: each + waiting.get(name, 0) for name, each in seen.items()})


@broken(Fp8Matmul, "scale_of", "OPT-06a[fp8-delayed]: step 1: the buffer", leanest="")
def records_the_amax_of_a_validation(scale_of, self, t_RC, role, along, matrix):
    """What records an amax does not ask for the mode: the scales of the next step fit the tokens of a validation."""
    self.train()
    return scale_of(self, t_RC, role, along, matrix)


@broken(Trainer, "validate", "OPT-06a[bf16]: a validation draws: the generator torch differs")
def shuffles_with_the_generator_of_the_run(validate, self, batches):
    """The order of the validation is drawn from the generator from which dropout draws."""
    torch.randperm(len(batches))
    return validate(self, batches)


@broken(Trainer, "validate", "OPT-06a[own-data]: step 2: losses is")
def reads_the_data_of_the_run(validate, self, batches):
    """One loader serves both: the sequences that a validation read are never trained on."""
    self.consumed += sum(len(each.tokens_BT) for each in batches)
    return validate(self, batches)


@broken(Trainer, "validate", "OPT-06a[letters]: step 1: the optimizer state")
def steps_the_optimizer(validate, self, batches):
    """The loop steps the optimizer after every pass; at a rate of 0 no weight moves, and the moments do."""
    loss = validate(self, batches)
    self.optimizer.step(0.0)
    return loss


@broken(Trainer, "validate", "OPT-06a[recomputed]: step 2: grad_norm is")
def freezes_the_first_layer(validate, self, batches):
    """A validation that turns off gradients by module does not turn all of them on again."""
    self.model.layers["0"].requires_grad_(False)
    return validate(self, batches)


@derived("OPT-06a[letters]: step 2: the loss of another validation is")
class MasksItsLabelsInPlace(Trainer):
    """The set stays in memory, and with every validation each of its rows has one label less."""

    held: Sequence[Batch] = ()

    def validate(self, batches: Sequence[Batch]) -> float:
        self.held = self.held or batches
        loss = super().validate(self.held)
        for each in self.held:
            counted_BT = each.labels_BT != IGNORED
            each.labels_BT[counted_BT.cumsum(1) == 1] = IGNORED
        return loss


@broken(
    Trainer,
    "validate",
    "OPT-06b[dense]: the loss of a validation over 2 batches is",
    "OPT-06b[few-labels]: the loss of a validation over 2 batches is",
)
def takes_the_mean_of_batches(validate, self, batches):
    """The mean of the batches' means: a batch with few labels weighs as much as a full one."""
    return sum(validate(self, [each]) for each in batches) / len(batches)


@broken(Trainer, "validate", "OPT-06b[a-batch-without-labels]: the loss of a validation over 3 batches is nan")
def takes_the_mean_over_no_labels(validate, self, batches):
    """Each batch's mean is weighed by its labels, and the mean over none is 0 / 0: NaN times 0 is NaN."""
    counts = [int((each.labels_BT != IGNORED).sum()) for each in batches]
    means = [validate(self, [each]) if count else math.nan for each, count in zip(batches, counts, strict=True)]
    return sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)


@broken(Trainer, "validate", "OPT-06b[one-batch]: the loss of a validation over 1 batches is")
def divides_by_every_position(validate, self, batches):
    """The sum over labels is divided by all positions, masked ones included."""
    counted = sum(int((each.labels_BT != IGNORED).sum()) for each in batches)
    return validate(self, batches) * counted / sum(each.labels_BT.numel() for each in batches)


@broken(Router, "choose", "OPT-06b[selection-bias]: the loss of a validation over 2 batches is", leanest="")
def biases_the_choice_in_training_alone(choose, self, scores_BTE):
    """The bias is part of the balancing, and that is for training: a validation goes to other experts."""
    if self.training:
        return choose(self, scores_BTE)
    return scores_BTE.topk(self.moe.top_k, dim=-1).indices


with_attributes(
    "DeclaresMeansOfBatches",
    "Declares the mean of its batches' means, and weighs labels.",
    "OPT-06b[few-labels]: the loss of a validation over 2 batches is",
    conventions={"validation-mean": "batches"},
)


@broken(
    ParallelTrainer,
    "validate",
    "OPT-06c[dense-dp2]: the loss of a validation is",
    "OPT-06c[dp2]: the loss of a validation is",
)
def tells_the_loss_of_its_own_rows(validate, self, batches):
    """Each rank reports the loss of the rows that it read."""
    own = [self.model(*each) for each in batches]
    validate(self, batches)
    return sum(float(each.sums["lm"].detach()) for each in own) / sum(int(each.counts["lm"]) for each in own)


@broken(ParallelTrainer, "validate", "OPT-06c[fsdp2]: the loss of a validation is")
def takes_the_mean_of_batches_on_ranks(validate, self, batches):
    """One process weighs labels; the loop over ranks takes the mean of its batches' means."""
    return sum(validate(self, [each]) for each in batches) / len(batches)


@broken(
    ParallelTrainer,
    "validate",
    "OPT-06c[hsdp-2x2]: the loss of a validation is",
    "OPT-06c[cp2]: the loss of a validation is",
)
def counts_a_row_once_per_rank_that_shares_it(validate, self, batches):
    """The sum goes over context-parallel ranks and replicas; the count of labels does not."""
    return validate(self, batches) * self.execution.degrees.cp * self.execution.replicas


@derived("OPT-06c[dp2]: after a validation on 2 ranks, grad_norm is")
class NextStepIsNotReduced(ParallelTrainer):
    """A validation runs under `no_sync`, and what that switches off is on again a step late."""

    validated = False

    def validate(self, batches: Sequence[Batch]) -> float:
        self.validated = True
        return super().validate(batches)

    def reduce(self) -> None:
        left_out, self.validated = self.validated, False
        if not left_out:
            super().reduce()


@broken(ParallelTrainer, "validate", "OPT-06c[borrowed-ep2-fsdp]: after a validation on 2 ranks, grad_norm is")
def leaves_gradients_unsynchronised(validate, self, batches):
    """The same under FSDP: gradients are not synchronised for a forward pass that has none, and stay so."""
    loss = validate(self, batches)
    for each in self.model.modules():
        if isinstance(each, FSDPModule):
            each.set_requires_gradient_sync(False)
    return loss


class _Draws(ParallelTrainer):
    """Gives every rank of a validation as many sequences."""

    padded = False

    def share(self, batch: Batch) -> Batch:
        members = len(self.mesh.place("rows"))
        rows = len(batch.tokens_BT)
        each = -(-rows // members) if self.padded else rows // members
        order = [at % rows for at in range(each * members)]
        return super().share(Batch(*(None if part is None else part[order] for part in batch)))  # type: ignore[arg-type]


with_attributes(
    "PadsAValidation",
    "As DistributedSampler does: the first sequences stand in for those that are missing, and count twice.",
    "OPT-06d[dp2-of-3]: the loss of a validation over 3 sequences on 2 ranks is",
    "OPT-06d[tp2-sp-dp2-of-3]: the loss of a validation over 3 sequences on 4 ranks is",
    owner=_Draws,
    padded=True,
)

with_attributes(
    "DropsTheRestOfAValidation",
    "As DistributedSampler(drop_last=True) does.",
    "OPT-06d[fsdp2-of-3]: the loss of a validation over 3 sequences on 2 ranks is",
    "OPT-06d[cp2-dp2-of-3]: the loss of a validation over 3 sequences on 4 ranks is",
    owner=_Draws,
)


@broken(
    training,
    "_trained",
    "OPT-06d[dense-dp2-of-1]: a step was saved by then",
    "OPT-06d[hsdp-2x2-of-3]: a step was saved by then",
)
def opens_a_validation_late(trained, trainer, session):
    """A validation is set up when the first one is due, and what does not fit the ranks is found as late."""
    if not session.validation or session.steps < 2:
        return trained(trainer, session)
    first = trained(trainer, replace(session, steps=1, batches=session.batches[:1], validation=()))
    given = session.batches[1:]
    rest = trained(trainer, replace(session, steps=len(given), batches=given, weights={}, buffers={}))
    return replace(first, steps=(*first.steps, *rest.steps))


@broken(ParallelTrainer, "own", "OPT-06c[dense-fsdp2-one-row-each]: a legal input was refused")
def counts_the_rows_of_the_first_batch(own, self, rows):
    """How many rows a rank has is counted once, at the first batch: a short validation refuses the steps after it."""
    before, found = self.shares, own(self, rows)
    self.shares = before or self.shares
    return found
