"""Stacks that enter an axis only in their settings: every number is right, and no rank has less to do."""

from dataclasses import replace

from contracts.law._bugs.dead import EveryRankDoesAll
from contracts.law._bugs.numeric import (
    Causal,
    ContextParallel,
    Reference,
    broken,
    mutant,
    parallel_trainer,
    parallelize,
    with_attributes,
)
from contracts.spec import Session, Trained

with_attributes(
    "EveryRankComputesTheWholeStep",
    "Degrees are read, printed and never used.",
    "PAR-16[pp2-beside-dp2]: rank 0 of 4 computes 100% of what one rank by itself does",
    "PAR-16[interleaved]: rank 0 of 2 computes 100% of what one rank by itself does",
    "PAR-16[ep2]: rank 0 of 2 computes 100% of what one rank by itself does",
    "PAR-16[cp2-hybrid]: rank 0 of 2 computes 100% of what one rank by itself does",
    "PAR-16[cp2]: rank 0 of 2 computes 100% of what one rank by itself does",
    "PAR-16[fsdp2]: rank 0 of 2 computes 100% of what one rank by itself does",
    "PAR-16[dp2]: rank 0 of 2 computes 100% of what one rank by itself does",
    owner=EveryRankDoesAll,
)


@broken(
    parallel_trainer,
    "parallelize",
    "PAR-16[tp2]: rank 0 of 2 computes 100% of what one rank by itself does",
)
def matches_no_module(former, model, execution, mesh, parts):
    """The plan of tensor parallelism names modules that the model does not have, and a plan may name what it likes."""
    return model


@mutant(of="PAR-16", case="fsdp2", says="rank 0 of 2 updates 100% of what one rank by itself does")
@mutant(of="PAR-16", case="cp2-fsdp", says="rank 0 of 2 updates 100% of what one rank by itself does")
class EveryRankHoldsTheWholeModel(Reference):
    """Sharding that is asked for is data parallelism: rows are divided, weights and moments are whole on each rank."""

    def train(self, session: Session) -> Trained:
        return super().train(replace(session, execution=replace(session.execution, fsdp=False, replicas=1)))


@broken(Causal, "attend", "PAR-16[cp2]: of the products of activations that one rank by itself does, expected 70%")
def attends_for_every_rank(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """Under context parallel each rank gathers the queries too, attends over whole rows and keeps its part."""
    if not isinstance(self.row, ContextParallel):
        return attend(self, q_BTHd, k_BSHd, v_BSHv, visible_BTS)
    return self.row.own(attend(self, self.row.every(q_BTHd), k_BSHd, v_BSHv, None))


@broken(parallelize, "checkpoint", "PAR-16a[tp2-sp]: with recomputation rank 0 of 2 computes 1.00 times what it does",
        "PAR-16a[pp2]: computes 1.00 times", "PAR-16a[hybrid]: computes 1.00 times", bugs=("ACK-07",))  # fmt: skip
def wraps_nothing(checkpoint, forward, *given, **named):
    """The wrapper is made, and what it wraps is called by itself."""
    return forward(*given)
