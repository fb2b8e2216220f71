"""Steps that report another largest loss."""

from contracts.law._bugs.numeric import ParallelTrainer, broken


@broken(
    ParallelTrainer,
    "largest",
    "PAR-01j[dense-dp2]: the largest loss is",
    "PAR-01j[fsdp2]: the largest loss is",
    "PAR-01j[dense-tp2-sp-dp2]: the largest loss is",
)
def divides_by_the_labels_of_all_ranks(largest, self, total, labels, whole):
    """The loss of a rank is its part of the mean: its sum over the labels of all ranks."""
    return largest(self, total, whole, whole)


@broken(ParallelTrainer, "largest", "PAR-01j[dense-cp2-dp2]: the largest loss is")
def divides_a_part_by_the_labels_of_whole_rows(largest, self, total, labels, whole):
    """The sum covers only a rank's own tokens, and the count covers its whole rows."""
    return largest(self, total / self.execution.degrees.cp, labels, whole)


@broken(ParallelTrainer, "largest", "PAR-01j[dense-pp2-dp2]: the largest loss is 0")
def asks_the_first_stage(largest, self, total, labels, whole):
    """The largest loss is taken on the first stage, which reads the labels and has no loss."""
    first = self.mesh.place("pp")[0] == self.mesh.rank
    return largest(self, total if first else 0 * total, labels, whole)


@broken(ParallelTrainer, "largest", "PAR-01j[dp4]: the largest loss is")
def reports_its_own(largest, self, total, labels, whole):
    """Each rank reports its own mean, and rank 0's is logged."""
    return float(total / labels)
