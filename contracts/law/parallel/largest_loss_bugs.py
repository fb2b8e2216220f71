"""Steps that report another largest loss."""

from torch import Tensor

from contracts.law._bugs.numeric import Batch, ParallelTrainer, broken, derived


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


@derived("PAR-01j[packed-dp2]: the largest loss is")
class CountsALabelBehindEachDocument(ParallelTrainer):
    """Counts a label for each token of a row but the last, as in a row of one document: a packed rank reports less."""

    def count(self, micro: Batch) -> dict[str, Tensor]:
        documents_BT = micro.documents_BT
        self.ends = 0 if documents_BT is None else int((documents_BT[:, 1:] != documents_BT[:, :-1]).sum())
        return super().count(micro)

    def largest(self, total: Tensor, labels: Tensor, whole: Tensor) -> float | None:
        return super().largest(total, labels + self.ends, whole)


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
