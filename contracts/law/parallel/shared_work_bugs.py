"""Stacks that enter an axis only in their settings: every number is right, and no rank has less to do."""

from contracts.contract import mutant
from contracts.law._bugs.broken import broken
from contracts.law._bugs.dead import EveryRankDoesAll
from contracts.stacks.reference.parallel import parallel_trainer


@mutant(of="PAR-16", case="dp2", says="rank 0 of 2 computes 100% of what one rank by itself does")
@mutant(of="PAR-16", case="fsdp2", says="rank 0 of 2 computes 100% of what one rank by itself does")
@mutant(of="PAR-16", case="cp2", says="rank 0 of 2 computes 100% of what one rank by itself does")
@mutant(of="PAR-16", case="cp2-hybrid", says="rank 0 of 2 computes 100% of what one rank by itself does")
@mutant(of="PAR-16", case="ep2", says="rank 0 of 2 computes 100% of what one rank by itself does")
@mutant(of="PAR-16", case="interleaved", says="rank 0 of 2 computes 100% of what one rank by itself does")
@mutant(of="PAR-16", case="pp2-beside-dp2", says="rank 0 of 4 computes 100% of what one rank by itself does")
class EveryRankComputesTheWholeStep(EveryRankDoesAll):
    """Degrees are read, printed and never used."""


@broken(
    parallel_trainer,
    "parallelize",
    "PAR-16[tp2]: rank 0 of 2 computes 100% of what one rank by itself does",
)
def matches_no_module(parallelize, model, execution, mesh, parts):
    """The plan of tensor parallelism names modules that the model does not have, and a plan may name what it likes."""
    return model
