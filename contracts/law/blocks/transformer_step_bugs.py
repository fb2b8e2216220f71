"""Transformers with experts that have one bug, as a whole training step shows it."""

from contracts.law._bugs.numeric import Trainer, broken


@broken(
    Trainer,
    "reduce",
    "BLK-01h[grouped-tied]: the gradient of embedding.weight",
    "BLK-01h[dense-tied]: the gradient of embedding.weight",
    bugs=("TIE-02",),
)
def counts_a_tied_weight_by_its_names(reduce, self):
    """Writes main gradients back by name: a weight of two names gets its gradient twice."""
    reduce(self)
    shared = self.model.embedding.weight.grad
    if self.model.head is None and shared is not None:
        shared += shared.clone()


@broken(Trainer, "count", "BLK-01i[z-loss]: the step reports z", leanest="")
def divides_the_z_loss_by_sequences(count, self, micro):
    """The trainer counts sequences where the z loss is a mean over tokens."""
    found = count(self, micro)
    return found | {"z": found["aux"]}


@broken(
    Trainer,
    "count",
    "BLK-01i[prediction-heads-in-five]: the step reports mtp",
    "BLK-01i[prediction-heads]: the step reports mtp",
)
def divides_each_depth_by_all_labels(count, self, micro):
    """A depth has fewer labels than the model, and is divided by the model's."""
    found = count(self, micro)
    return {name: found["lm"] if name.startswith("mtp") else each for name, each in found.items()}


@broken(Trainer, "accumulate", "BLK-01i[balance-loss]: the gradient of", leanest="")
def halves_what_it_balances(accumulate, self, micro, counts):
    """The reported loss is right, and half of it is differentiated."""
    return accumulate(self, micro, {**counts, "aux": counts["aux"] * self.execution.microbatches * 2})


@broken(Trainer, "passes", "BLK-01i[dense-in-five]: the gradient of")
def divides_by_microbatches_as_well(passes, self, window, counts):
    """Each pass is divided by the labels of the window, and then by the number of passes."""
    return passes(self, window, {**counts, "lm": counts["lm"] * len(window)})
