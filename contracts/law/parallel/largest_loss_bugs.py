"""Steps that report another largest loss."""

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


@broken(
    ParallelTrainer,
    "largest",
    "PAR-01j[dense-dp2]: the largest loss is",
    "PAR-01j[fsdp2]: the largest loss is",
)
def divides_by_the_labels_of_all_ranks(largest, self, total, labels, whole):
    """The loss of a rank is its part of the mean: its sum over the labels of all ranks."""
    return largest(self, total, whole, whole)


@broken(ParallelTrainer, "largest", "PAR-01j[dp4]: the largest loss is")
def reports_its_own(largest, self, total, labels, whole):
    """Each rank reports its own mean, and rank 0's is logged."""
    return float(total / labels)
