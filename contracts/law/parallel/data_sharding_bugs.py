"""Stacks whose ranks read the wrong rows, or lose labels where sequences are cut."""

from dataclasses import replace

from torch import Tensor

from contracts.law._bugs.numeric import IGNORED, ParallelTrainer, SplitVocabulary, TensorParallel, broken
from contracts.spec import Data, Refused, refuse


class _LosesEdges(SplitVocabulary):
    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        labels_BT = labels_N.view(4, -1).clone()
        run = labels_BT.shape[1] // self.axis.size
        labels_BT[:, run - 1 : -1 : run] = IGNORED
        return super().cross_entropy(logits_NV, labels_BT.flatten())


@broken(TensorParallel, "ends", "PAR-06g[tp2-sp]: lm is", bugs=("ROP-23",))
def shifts_labels_within_each_run(ends, self, model):
    """Each rank shifts the labels of its own tokens, and its last token gets none."""
    ends(self, model)
    model.vocabulary = _LosesEdges(self, model.recipe.vocab)


@broken(ParallelTrainer, "count", "PAR-06g[tp2-sp]: labels count")
def counts_labels_within_each_run(count, self, micro):
    """Labels are counted after each rank shifted its own tokens: the mean is over too few."""
    found = count(self, micro)
    labels_BT = micro.labels_BT.clone()
    run = labels_BT.shape[1] // self.execution.degrees.tp
    labels_BT[:, run - 1 : -1 : run] = IGNORED
    return found | {"lm": (labels_BT != IGNORED).sum()}


@broken(ParallelTrainer, "own", "PAR-06h[dp2]: labels count")
def drops_what_does_not_divide(own, self, rows):
    """Five sequences on two ranks become two each, while all five ids are reported."""
    members = self.mesh.place("rows")
    each, at = len(rows) // len(members), members.index(self.mesh.rank)
    return rows[at * each : (at + 1) * each]


@broken(ParallelTrainer, "own", "PAR-06h[ep2]: labels count", bugs=("ROP-07", "DAT-10"))
def cuts_the_batch_by_the_world(own, self, rows):
    """Ranks that share a batch each take a part of it: the batch is cut twice."""
    each, at = len(rows) // self.execution.world, self.mesh.rank
    return rows[at * each : (at + 1) * each]


@broken(ParallelTrainer, "own", "PAR-06h[dp2]: on one rank")
def reads_a_row_twice(own, self, rows):
    """If the batch does not divide, the second rank begins a row early: one sequence is read twice, one never."""
    mine = own(self, rows)
    first = rows.index(mine[0])
    return rows[max(0, first - 1) : max(0, first - 1) + len(mine)]


@broken(ParallelTrainer, "opened", "PAR-06m[dp2-rank-1]: was accepted, expected a refusal", bugs=("DAT-28",))
def falls_back_to_mock_data(opened, self):
    """A rank whose file is not there continues with mock data, so that nobody waits: half of the batch is noise."""
    try:
        return self.corpus_class(self.recipe)
    except Refused:
        return self.corpus_class(replace(self.recipe, data=Data()))


@broken(ParallelTrainer, "opened", "PAR-06m[tp2-rank-0]: the refusals do not all name", bugs=("DAT-28",))
def says_that_a_rank_is_lost(opened, self):
    """All ranks stop together, and say that one of them is gone instead of why."""
    try:
        return opened(self)
    except Refused:
        raise refuse("world", self.execution.world, "lost a rank", "look into its log") from None
