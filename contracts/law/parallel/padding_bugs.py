"""Trainers that count padding, or that divide by nothing where there is nothing else."""

import torch

from contracts.law._bugs.numeric import (
    IGNORED,
    Model,
    ParallelTrainer,
    Trainer,
    broken,
    derived,
    hybrid_model,
    with_attributes,
)


@broken(
    Trainer,
    "count",
    "PAR-05i[dense]: 52 labels count, expected 24",
    "PAR-05i[equal-rows]: 39 labels count, expected 24",
)
def counts_every_position(count, self, micro):
    """The loss is divided by all positions: the more a batch is padded, the smaller is its step."""
    return count(self, micro) | {"lm": torch.tensor(micro.labels_BT.numel())}


@broken(Trainer, "accumulate", "PAR-05i[unequal-rows]: with padding the gradient of")
def learns_less_from_padded_rows(accumulate, self, micro, counts):
    """The loss is reported over labels, and differentiated as a mean over positions."""
    whole = counts["lm"] * micro.labels_BT.numel() // (micro.labels_BT != IGNORED).sum().clamp(min=1)
    return accumulate(self, micro, {**counts, "lm": whole})


@broken(Trainer, "accumulate", "PAR-05i[a-row-of-padding]: with padding,")
def learns_to_predict_padding(accumulate, self, micro, counts):
    """The mask of the labels is made of a token that does not pad here: padding is predicted as text is."""
    after_BT = micro.tokens_BT.roll(-1, 1)
    last_BT = (micro.labels_BT == IGNORED) & (after_BT == self.recipe.vocab - 1)
    labels_BT = torch.where(last_BT, after_BT, micro.labels_BT)
    return accumulate(self, micro._replace(labels_BT=labels_BT), counts)


@broken(
    Trainer,
    "accumulate",
    "PAR-05i[a-dense-microbatch-of-padding]: lm is nan with padding",
    "PAR-05i[a-microbatch-of-padding]: lm is nan with padding",
)
def divides_by_no_label(accumulate, self, micro, counts):
    """A microbatch of only padding has a mean of 0 / 0, and the NaN is added to all others."""
    own = self.count(micro)["lm"] * self.execution.microbatches
    out = accumulate(self, micro, {**counts, "lm": own})
    return out._replace(sums={**out.sums, "lm": out.sums["lm"] / own * counts["lm"]})


with_attributes(
    "DeclaresMeansOfPaddedMicrobatches",
    "Declares the mean of the microbatches' means, and divides by the labels of the step.",
    "PAR-05i[a-microbatch-of-padding]: lm is",
    conventions={"window-divides-by": "microbatch-means"},
)


@broken(ParallelTrainer, "accumulate", "PAR-05j[dense-dp4]: lm is", "PAR-05j[dp2]: lm is")
def takes_the_mean_of_ranks(accumulate, self, micro, counts):
    """Each rank's mean weighs the same: a rank of padding halves the step of the others."""
    own = self.total([self.count(micro)])["lm"] * len(self.mesh.place("rows"))
    out = accumulate(self, micro, {**counts, "lm": own.clamp(min=1)})
    return out._replace(sums={**out.sums, "lm": out.sums["lm"] / own.clamp(min=1) * counts["lm"]})


@broken(ParallelTrainer, "over_rows", "PAR-05j[fsdp2]: labels count, ")
def counts_no_labels_on_a_padded_rank(over_rows, self, counts):
    """A rank without labels takes a branch of its own, and its count for that of all."""
    own = int(counts["lm"])
    found = over_rows(self, counts)
    return found if own else found | {"lm": torch.tensor(1)}


@broken(ParallelTrainer, "build", "PAR-05j[dense-cp2]: lm is nan")
def divides_by_the_labels_of_its_part_of_a_row(build, self):
    """Each rank of a row takes the mean over its own labels and weighs it by their number: 0 / 0 after the text."""
    model = build(self)
    whole = model.cross_entropy

    def cross_entropy(logits_BTV, labels_BT):
        total, count = whole(logits_BTV, labels_BT)
        return (total / count * count if self.execution.degrees.cp > 1 else total), count

    model.cross_entropy = cross_entropy
    return model


@broken(
    Trainer,
    "accumulate",
    "PAR-05k[dense-in-two]: is not finite after a step without a label",
    "PAR-05k[dense]: is not finite after a step without a label",
    "PAR-05k[letters]: is not finite after a step without a label",
)
def steps_without_a_label(accumulate, self, micro, counts):
    """The sum of no losses is divided by the number of no labels, and the step is taken (Automodel #3796)."""
    out = accumulate(self, micro, counts)
    for parameter in self.model.parameters() if not counts["lm"] else ():
        if parameter.grad is not None:
            parameter.grad.fill_(float("nan"))
    return out


@derived(
    "PAR-05m[documents-of-their-own]: mtp is ",
    "PAR-05m[ends-of-documents]: mtp is ",
    "PAR-05m[dense-ends-of-documents]: mtp is ",
)
class ShiftsByBordersWithoutPadding(Model):
    """Labels are padded with their documents, and shifted for a depth by the borders of documents that are not."""

    def forward(self, tokens_BT, labels_BT, documents_BT=None):
        borders_BT = documents_BT.clone()
        for row, of_T in enumerate(documents_BT):
            kept_T = of_T[tokens_BT[row] != self.recipe.vocab - 1]
            borders_BT[row, : len(kept_T)] = kept_T
        shift = hybrid_model.shift_left
        hybrid_model.shift_left = lambda values, pack, *of: shift(values, pack._replace(documents_BT=borders_BT), *of)
        try:
            return super().forward(tokens_BT, labels_BT, documents_BT)
        finally:
            hybrid_model.shift_left = shift
