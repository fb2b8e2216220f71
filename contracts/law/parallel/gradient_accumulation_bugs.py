"""Trainers whose step depends on how its batch is cut into microbatches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.law._bugs.numeric import IGNORED, Batch, Model, ModelOutput, Trainer, broken, derived, with_attributes
from contracts.spec import Tokens
from contracts.stacks.reference.answers import model


@broken(Trainer, "accumulate", "PAR-05a[three]: lm is")
def takes_the_mean_of_means(accumulate, self, micro, counts):
    """The loss is the mean of the microbatches' means: labels in microbatches with few labels weigh more."""
    parts = self.execution.microbatches
    own = {name: each.clamp(min=1) * parts for name, each in self.count(micro).items()}
    out = accumulate(self, micro, own)
    scaled = {name: each / own[name] * counts[name] for name, each in out.sums.items()}
    return out._replace(sums=scaled)


with_attributes(
    "DeclaresAMeanOfMeans",
    "Declares the mean of the microbatches' means, and divides by the labels of the step.",
    "PAR-05b[four]: the mean over labels",
    conventions={"window-divides-by": "microbatch-means"},
)


@broken(Trainer, "accumulate", "PAR-05a[a-microbatch-without-a-label]: lm is nan in 5 microbatches")
def divides_by_no_labels(accumulate, self, micro, counts):
    """The mean over a microbatch without labels is 0 / 0, and the NaN destroys every weight."""
    parts = self.execution.microbatches
    own = {name: each * parts for name, each in self.count(micro).items()}
    out = accumulate(self, micro, own)
    return out._replace(sums={name: each / own[name] * counts[name] for name, each in out.sums.items()})


@broken(Trainer, "accumulate", "PAR-05a[heads-without-a-label]: mtp is nan in 5 microbatches", bugs=("DPS-26",))
def heads_divide_by_no_labels(accumulate, self, micro, counts):
    """A microbatch whose prediction heads have no label divides 0 by 0; the main loss is right."""
    parts = self.execution.microbatches
    heads = {name: each * parts for name, each in self.count(micro).items() if name.startswith("mtp")}
    out = accumulate(self, micro, {**counts, **heads})
    sums = {name: each / heads[name] * counts[name] if name in heads else each for name, each in out.sums.items()}
    return out._replace(sums=sums)


@broken(Model, "objective", "PAR-05a[a-step-without-a-label-for-heads]: mtp is nan", bugs=("DPS-26",), leanest="")
def step_divides_by_no_labels(objective, self, sums, counts):
    """Counting over the window mends the microbatch; a whole step without a label for the heads is NaN all the same."""
    found = objective(self, sums, counts)
    empty = [name for name in sums if name.startswith("mtp") and not int(counts[name])]
    return {name: each / 0 * 0 if empty and name in ("mtp", "total") else each for name, each in found.items()}


@broken(Trainer, "accumulate", "PAR-05b[one]: the mean over labels")
def takes_the_mean_of_sequences(accumulate, self, micro, counts):
    """The loss is the mean of the sequences' means: independent of the cut, and wrong."""
    held = [torch.split(each, 1) for each in micro if each is not None]
    pieces = [Batch(*piece) for piece in zip(*held, strict=True)]
    rows = float(counts["aux"])
    found = []
    for piece in pieces:
        own = {name: each.clamp(min=1) * rows for name, each in self.count(piece).items()}
        out = accumulate(self, piece, own)
        found.append(out._replace(sums={name: each / own[name] * counts[name] for name, each in out.sums.items()}))
    return found[0]._replace(sums=self.total([each.sums for each in found]))


@derived("PAR-05a[one-a-sequence]: z is", leanest="")
class DividesOnlyTheMainLoss(Trainer):
    """Auxiliary losses are added per microbatch and never divided: they grow with the number of microbatches."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        return super().accumulate(micro, {**counts, "z": self.count(micro)["z"]})

    def total(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        found = super().total(parts)
        return found | ({"z": found["z"] * len(parts)} if "lm" in found and found["z"].is_floating_point() else {})


@broken(Trainer, "accumulate", "PAR-05a[two]: aux is", bugs=("AUX-04",), leanest="")
def divides_aux_twice(accumulate, self, micro, counts):
    """The balance loss is divided by the step's sequences and again by the microbatches."""
    parts = self.execution.microbatches
    out = accumulate(self, micro, {**counts, "aux": counts["aux"] * parts})
    return out._replace(sums={**out.sums, "aux": out.sums["aux"] / parts})


@broken(
    Trainer,
    "accumulate",
    "PAR-05a[balance-loss-a-sequence]: in 5 microbatches the gradient of",
    "PAR-05a[z-loss-a-sequence]: in 5 microbatches the gradient of",
)
def balances_less_in_large_microbatches(accumulate, self, micro, counts):
    """A router multiplies its losses by the tokens of one sequence, and the step divides by those of the microbatch.
    What is reported does not pass there."""
    rows = len(micro.tokens_BT)
    return accumulate(self, micro, {**counts, "aux": counts["aux"] * rows, "z": counts["z"] * rows})


@broken(Trainer, "cut", "PAR-05a[no-auxiliary-losses]: labels count in 4 microbatches", bugs=("PPS-17",))
def drops_the_remainder(cut, self, batch):
    """Sequences // microbatches: the last sequences of the batch are never seen."""
    parts = self.execution.microbatches
    kept = len(batch.tokens_BT) // parts * parts
    documents = None if batch.documents_BT is None else batch.documents_BT[:kept]
    return cut(self, Batch(batch.tokens_BT[:kept], batch.labels_BT[:kept], documents))


@broken(Trainer, "accumulate", "PAR-05a[two]: in 2 microbatches the gradient of", bugs=("DPS-17",))
def zeroes_inside_the_window(accumulate, self, micro, counts):
    """zero_grad is called inside the accumulation loop: the step has only the last microbatch."""
    self.optimizer.zero()
    return accumulate(self, micro, counts)


@broken(Trainer, "accumulate", "PAR-05a[three]: in 3 microbatches the gradient of", bugs=("DPS-16",))
def keeps_the_first_microbatch_alone(accumulate, self, micro, counts):
    """Gradients of later microbatches never reach the tensors that the optimizer reads."""
    held = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
    out = accumulate(self, micro, counts)
    for name, parameter in self.model.named_parameters():
        if name in held:
            parameter.grad = held[name]
    return out


@broken(Trainer, "accumulate", "PAR-05a[prediction-heads]: mtp is")
def counts_prediction_heads_by_the_main_labels(accumulate, self, micro, counts):
    """The prediction heads' losses are divided by each microbatch's own labels."""
    own = {name: each for name, each in self.count(micro).items() if name.startswith("mtp")}
    parts = self.execution.microbatches
    out = accumulate(self, micro, {**counts, **{name: each * parts for name, each in own.items()}})
    scaled = {name: out.sums[name] / (own[name] * parts).clamp(min=1) * counts[name] for name in own}
    return out._replace(sums={**out.sums, **scaled})


@broken(Trainer, "accumulate", "PAR-05a[a-microbatch-without-a-label]: aux is", leanest="")
def skips_microbatches_without_labels(accumulate, self, micro, counts):
    """Microbatches without labels are skipped to avoid a division by zero, and their routing is not balanced."""
    if bool((micro.labels_BT != IGNORED).any()):
        return accumulate(self, micro, counts)
    with torch.no_grad():
        out = self.model(*micro)
    return out._replace(sums={name: torch.zeros_like(each) for name, each in out.sums.items()})


@broken(Trainer, "count", "PAR-05b[four]: labels that count in each sequence: [13, 13, 13, 13, 13]")
def divides_by_positions(count, self, micro):
    """The loss is divided by all positions, also those without a label: packed batches learn less."""
    return count(self, micro) | {"lm": torch.tensor(micro.tokens_BT.numel())}


@derived("PAR-05c[one]: after a step of another length", leanest="")
class KeepsTheFirstMask(Model):
    """Document bounds are computed for the first batch and cached in the model."""

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        documents_BT = self.first if self.first is not None and documents_BT is not None else documents_BT
        assert documents_BT is not None
        self.first = documents_BT if self.first is None else self.first
        rows, length = tokens_BT.shape
        kept = self.first[:1, :length]
        kept = torch.cat((kept, kept[:, -1:].expand(1, length - kept.shape[1])), 1).expand(rows, length)
        return super().forward(tokens_BT, labels_BT, kept)

    first: Tensor | None = None


@derived("PAR-05c[one]: after a step of another length")
class DividesByTheFirstCount(Trainer):
    """The labels of a step are counted once and kept as a constant of the run, as if all steps had equally many."""

    counted: dict[str, Tensor] | None = None

    def count(self, micro: Batch) -> dict[str, Tensor]:
        self.counted = self.counted or dict(super().count(micro))
        return self.counted


def _parts(batch: Tokens, microbatches: int) -> list[Tokens]:
    held = {"tokens": batch.tokens, "labels": batch.labels, "documents": batch.documents}
    cut = {name: numerics.tensor(each).chunk(microbatches) for name, each in held.items() if each is not None}
    rows = zip(*cut.values(), strict=True)
    return [Tokens(**dict(zip(cut, map(numerics.array, each), strict=True))) for each in rows]


@broken(
    model, "forward_pass", "PAR-05l[dense]: in 3 microbatches the logits has shape (1, 13, 61), expected (3, 13, 61)"
)
def returns_in_its_first_turn(forward_pass, built, execution, batch, *, backward):
    """The loop over microbatches ends with the first of them."""
    (first, *_), alone = _parts(batch, execution.microbatches), replace(execution, microbatches=1)
    return forward_pass(built, alone, first, backward=backward)


@broken(
    model,
    "forward_pass",
    "PAR-05l[two-of-three-rows]: in 2 microbatches the loss lm is",
    "PAR-05l[everything]: in 3 microbatches the loss",
)
def averages_the_losses_of_a_pass(forward_pass, built, execution, batch, *, backward):
    """Each part of a pass has a mean over its own labels, and the means are averaged."""
    whole, alone = forward_pass(built, execution, batch, backward=backward), replace(execution, microbatches=1)
    each = [forward_pass(built, alone, part, backward=False).losses for part in _parts(batch, execution.microbatches)]
    return replace(whole, losses={name: sum(losses[name] for losses in each) / len(each) for name in whole.losses})


@broken(model, "forward_pass", "PAR-05l[one-a-row]: in 3 microbatches the gradient of")
def keeps_the_gradients_of_the_last_part(forward_pass, built, execution, batch, *, backward):
    """Gradients are cleared in front of each part."""
    whole, alone = forward_pass(built, execution, batch, backward=backward), replace(execution, microbatches=1)
    last = forward_pass(built, alone, _parts(batch, execution.microbatches)[-1], backward=backward)
    return replace(whole, gradients=last.gradients)


@broken(
    Trainer, "accumulate", "PAR-05a[biased]: in 5 microbatches the gradient of layers.4.mixer.wo.bias differs",
    leanest="in 5 microbatches the gradient of layers.2.mixer.wo.bias differs",
)  # fmt: skip
def keeps_the_last_gradient_of_a_bias(accumulate, self, micro, counts):
    """The gradient of a bias is written and not added: the last microbatch's is left."""
    for name, parameter in self.model.named_parameters():
        if name.endswith(".bias"):
            parameter.grad = None
    return accumulate(self, micro, counts)
