"""Stacks that count one rank's part of a row for the whole row: its labels, its sequences, its expert balance."""

from contracts.law._bugs.numeric import IGNORED, Batch, ContextParallel, Model, ParallelTrainer, broken, shift_left


# labels
@broken(Model, "cross_entropy", "PAR-06i[cp2]: lm is", bugs=("ROP-23",))
def shifts_labels_within_each_rank(cross_entropy, self, logits_BTV, labels_BT):
    """Each rank shifts its own tokens, and its last token gets no label."""
    if isinstance(self.row, ContextParallel) and self.row.rank < self.row.ranks - 1:
        labels_BT = labels_BT.clone()
        labels_BT[:, -1] = IGNORED
    return cross_entropy(self, logits_BTV, labels_BT)


@broken(Model, "look_ahead", "PAR-06i[cp2]: mtp is", bugs=("ROP-23",), leanest="")
def looks_ahead_within_each_rank(look_ahead, self, hidden_BTD, tokens_BT, pack):
    """Prediction heads look for their tokens on their own rank only."""
    found = []
    own_BT, cut = self.row.own(tokens_BT), self.row.packing(pack)
    for depth, prediction in enumerate(self.mtp):
        later_BT = shift_left(own_BT, cut, depth + 1, IGNORED)
        seen_BTD = self.embed(later_BT.clamp(min=0)) * self.vocabulary.here(later_BT >= 0).unsqueeze(-1)
        hidden_BTD = prediction(hidden_BTD, seen_BTD, cut)
        found.append(self.predict(prediction.norm(hidden_BTD)))
    return found


@broken(ParallelTrainer, "count", "PAR-05h[cp2]: labels count", bugs=("DPS-20",))
def counts_labels_of_a_run_for_the_row(count, self, micro):
    """Labels are counted on each rank and summed over data-parallel ranks only."""
    labels_BT = self.model.row.own(micro.labels_BT)
    return count(self, micro) | {"lm": (labels_BT != IGNORED).sum()}


@broken(ParallelTrainer, "accumulate", "PAR-05h[cp2]: loss agrees, norm is", bugs=("DPS-22",))
def averages_means_of_runs(accumulate, self, micro, counts):
    """Each rank divides by its own labels, and the means are averaged; the reported loss is right."""
    own = (self.model.row.own(micro.labels_BT) != IGNORED).sum() * self.execution.degrees.cp
    return accumulate(self, micro, {**counts, "lm": own})


# reading
@broken(ParallelTrainer, "own", "PAR-06j[cp2]: on one rank", bugs=("DAT-27",))
def reads_by_its_rank_in_the_world(own, self, rows):
    """Context-parallel ranks read different sequences, and each keeps its part of its own."""
    each = len(rows) // self.execution.world
    return rows[self.mesh.rank * each : (self.mesh.rank + 1) * each]


@broken(ParallelTrainer, "batch", "PAR-06j[cp2]: labels count", bugs=("ROP-07",))
def cuts_rows_that_the_model_cuts_again(batch, self, ids):
    """The reader returns half of each row, and the model takes half of that."""
    cut = [None if each is None else each.chunk(2, dim=1)[0] for each in batch(self, ids)]
    return Batch(*cut)


@broken(ContextParallel, "packing", "PAR-05h[cp2-in-microbatches]: on one rank", bugs=("SSM-19",), leanest="")
def cuts_as_for_the_first_microbatch(packing, self, whole):
    """Document borders on context-parallel ranks are computed for the first microbatch and reused for rows packed
    otherwise.
    """
    return vars(self).setdefault(f"for {tuple(whole.documents_BT.shape)}", packing(self, whole))
