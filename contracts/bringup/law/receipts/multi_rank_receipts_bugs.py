"""Stacks whose receipts of several ranks cover only one rank, or overwrite each other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from contracts.instruments.ranks import torch_distributed
from contracts.law._bugs.broken import broken, with_attributes
from contracts.stacks.reference import train
from contracts.stacks.reference.launch import torchrun_environment
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.run_facts import RankReporter


@broken(
    RankReporter,
    "gather",
    "RCPT-01a[the-second-of-dp2]: the rank map of rank 0 has local ranks [0], expected [0, 1]",
    bugs=("PRV-01",),
)
def keeps_the_map_of_one_rank(gather, self, own):
    """Each rank's rank map lists only itself, because nobody asks the other ranks."""
    return own


@broken(
    RankReporter, "gather", "RCPT-01a[the-second-of-dp2]: only rank 1 was made to hold 512 MiB more", bugs=("PRV-23",)
)
def keeps_the_peak_of_the_first(gather, self, own):
    """Records the peak memory of rank 0, which holds the least."""
    told = gather(self, own)
    return replace(told, memory=told.memory[:1])


@broken(
    RankReporter, "gather", "RCPT-01a[the-first-of-tp2]: only rank 0 was made to hold 512 MiB more", bugs=("PRV-23",)
)
def keeps_the_peak_of_the_last(gather, self, own):
    """Each rank's peak overwrites the previous one."""
    told = gather(self, own)
    return replace(told, memory=told.memory[-1:])


@broken(
    RankReporter,
    "slowest",
    "RCPT-01a[the-first-of-tp2]: and rank 0 took 1.5 s longer than the rest",
    "RCPT-01a[the-second-of-dp2]: and rank 1 took 1.5 s longer than the rest",
)
def stops_its_own_clock(slowest, self, seconds):
    """Measures the seconds until this rank finished, without the ranks it would wait for."""
    return seconds


@broken(RankReporter, "slowest", "RCPT-01a[the-second-of-dp2]: and rank 1 took 1.5 s longer than the rest")
def takes_the_mean_of_the_clocks(slowest, self, seconds):
    """Takes the mean of the ranks' times as the time of a step."""
    torch, dist = torch_distributed()
    every = torch.tensor([seconds])
    dist.all_reduce(every)
    return float(every.item()) / self.place.world


class _CountsByTwo(RankReporter):
    factor = 2.0

    def timed_step(self, step: Callable[[], Any]) -> tuple[Any, float]:
        done, seconds = super().timed_step(step)
        return replace(done, tokens=int(done.tokens * self.factor)), seconds


with_attributes(
    "CountsTokensByTheWorld",
    "Multiplies a rank's tokens by the world, which doubles them where two ranks compute the same rows.",
    "RCPT-01a[the-first-of-tp2]: the labels of steps 2 and 3 are",
    owner=_CountsByTwo,
)

with_attributes(
    "CountsTheTokensOfItsRows",
    "Counts only the tokens of this rank's rows as those of the step.",
    "RCPT-01a[the-second-of-dp2]: the labels of steps 2 and 3 are",
    owner=_CountsByTwo,
    factor=0.5,
)


def _first(row: Any) -> dict[str, Any]:
    """The answer of rank 0 among those of all ranks."""
    actual = row.actual.partition("; ")[0].partition(" on rank")[0] if "on rank 0" in row.actual else row.actual
    return {"actual": actual, "reason": None if actual == row.requested else row.reason}


@broken(RankReporter, "gather", "RCPT-01a[the-second-of-dp2]: the experts ran as torch-grouped (no reason)")
def names_the_kernel_of_the_first(gather, self, own):
    """Records rank 0's kernel and ignores the rank that fell back and sets the pace."""
    told = gather(self, own)
    return replace(told, backends=tuple(replace(row, **_first(row)) for row in told.backends))


@broken(RankReporter, "timed_step", "RCPT-01a[the-first-of-tp2]: the first loss of the run is",
        "RCPT-01a[the-second-of-dp2]: the first loss of the run is")  # fmt: skip
def reports_the_objective(timed_step, self, step):
    """The loss of a report is the objective: runs with other coefficients of the balance loss do not compare."""
    done, seconds = timed_step(self, step)
    return replace(done, losses=done.losses | {"lm": done.losses["total"]}), seconds


@broken(torchrun_environment, "execution_of", "RCPT-01a[the-first-of-tp2]: a microbatch has 80 tokens, expected 40")
def counts_microbatches_over_the_world(execution_of, asked, place, device):
    """Ranks that share sequences are counted as if each had its own: microbatches are fewer and larger."""
    batch = asked.recipe.batch
    return replace(execution_of(asked, place, device), microbatches=max(1, batch.total // (place.world * batch.micro)))


@broken(torchrun_environment, "execution_of", "RCPT-01a[the-first-of-tp2]: a microbatch has 20 tokens, expected 40")
def takes_one_sequence_at_a_time(execution_of, asked, place, device):
    """Over-correction: every sequence is a microbatch, whatever the recipe says."""
    return replace(execution_of(asked, place, device), microbatches=asked.recipe.batch.total)


@broken(RankReporter, "timed_step", "RCPT-04c[dp2]: reports 3 steps and 0 skipped ones, expected (1, 2)",
        "RCPT-04c[tp2]: reports 3 steps and 0 skipped ones, expected (1, 2)")  # fmt: skip
def reports_every_step_as_taken(timed_step, self, step):
    """Nobody asks the scaler whether it left the step out."""
    done, seconds = timed_step(self, step)
    return replace(done, skipped=False), seconds


@broken(train, "_steps", "RCPT-01i[two-nodes]: node 1 hears of step [1, 2, 3], expected []",
        "RCPT-01i[two-of-two]: node 1 hears of step [1, 2, 3], expected []")  # fmt: skip
def reports_steps_on_each_node(_steps, settings, record, ranks, trainer):
    """The first rank of each node takes itself for the first of the run."""
    own = ranks.place
    ranks.place = replace(own, rank=own.local_rank)
    try:
        _steps(settings, record, ranks, trainer)
    finally:
        ranks.place = own


@broken(train, "_tell_of_ranks", "RCPT-01i[two-nodes]: node 1 hears of place [], expected [0]",
        "RCPT-01i[two-of-two]: node 0 hears of place [0], expected [0, 1]")  # fmt: skip
def asks_the_first_rank_alone(_tell_of_ranks, path, ranks, told):
    """The first rank of the run knows of itself, and speaks for all."""
    if ranks.place.rank == 0:
        _tell_of_ranks(path, ranks, told)


with_attributes(
    "LeavesOneFile",
    "Every rank writes its receipt under one name, and only the last one remains.",
    "RCPT-01a[the-second-of-dp2]: @lab is of box-",
    owner=RankReporter,
    mark="",
)


@broken(Reference, "run_receipts", "RCPT-01a[the-first-of-tp2]: rank 1 left")
def leaves_the_firsts_alone(run_receipts, self, recipe, degrees, steps, folder, taken, strain):
    """Only rank 0 leaves a receipt, so another node's machine is not recorded."""
    left = run_receipts(self, recipe, degrees, steps, folder, taken, strain)
    return replace(left, kept={name: each for name, each in left.kept.items() if "rank" not in name})
