"""Stacks that know the first batch and take every other for one of its size."""

from contracts.law._bugs.numeric import ContextParallel, MoE, ParallelTrainer, Pipeline, Trainer, broken


@broken(
    Trainer, "count", "OPT-11a[grows]: the second step's lm is", "OPT-11a[prediction-heads]: the second step's lm is"
)
def divides_by_the_labels_of_the_first_batch(count, self, micro):
    """The denominators are counted once."""
    return self.__dict__.setdefault("counted", count(self, micro))


@broken(MoE, "capacity", "OPT-11a[capacity]: the second step's lm is")
def keeps_the_slots_of_the_first_batch(capacity, self, tokens):
    """Buffers of experts are made for the first batch, and a larger one drops what does not fit."""
    return self.__dict__.setdefault("slots", capacity(self, tokens))


@broken(ParallelTrainer, "own", "OPT-11b[dp2]: labels count")
def shares_as_many_rows_as_at_first(own, self, rows):
    """Each rank's rows are worked out for the first batch: of a larger one the rest is read by nobody."""
    return own(self, rows[: self.__dict__.setdefault("first_rows", len(rows))])


@broken(Pipeline, "run", "OPT-11b[pp2]: the gradient of")
def stages_divide_by_the_first_window(run, self, window, counts):
    """The stages hear the denominators once; losses are reported with the right ones."""
    return run(self, window, self.__dict__.setdefault("first_counts", counts))


@broken(ContextParallel, "packing", "OPT-11b[cp2]: on one rank")
def keeps_where_its_run_began(packing, self, whole):
    """Where a rank's run begins in a row is worked out for the first length."""
    found = packing(self, whole)
    return found._replace(first=self.__dict__.setdefault("begins", found.first))
