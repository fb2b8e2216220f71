"""Pipelines whose messages have no counterpart or wait in a circle."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.law._bugs.numeric import Batch, ModelOutput, Pipeline, PipelineTrainer, broken, mutant, with_attributes


class _Reporting(PipelineTrainer):
    """The last stage sends its loss to the first, which does not receive it."""

    last_step = 1

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        found = super().passes(window, counts)
        (out,) = found
        first, *_, last = self.mesh.place("pp")
        if self.mesh.rank == last and self.number >= self.last_step:
            self.said = out.sums["lm"].clone().reshape(1)  # kept alive: gloo reads it later
            dist.batch_isend_irecv([dist.P2POp(dist.isend, self.said, first, self.group, tag=7)])
        return found

    said: Tensor


with_attributes(
    "SendsALossThatNobodyTakes",
    "The last step's loss is sent for a log that is already closed.",
    "TRAF-02a[interleaved]: messages to rank 0, which receives",
    "TRAF-02a[transformer-1f1b]: messages to rank 0, which receives",
    owner=_Reporting,
)

with_attributes(
    "SendsALossBeforeTheCopies",
    "A loss is sent where the first stage waits for the gradient of a copy; gloo tells them apart by a tag.",
    "TRAF-02a[four-stages]: from rank 3 to rank 0 is 1 float64, received as",
    owner=_Reporting,
    last_step=0,
)


@broken(PipelineTrainer, "add", "TRAF-02b[tied]: ranks wait for each other: rank 0 at a send of")
def sends_before_it_receives(add, self, parameter, peer):
    """Both holders of a copy send theirs first, and receive only when that is done."""
    sent, theirs = parameter.grad.clone(), torch.empty_like(parameter.grad)
    works = []
    for op, held in ((dist.isend, sent), (dist.irecv, theirs)):
        works += dist.batch_isend_irecv([dist.P2POp(op, held, peer, self.group)])
    for work in works:
        work.wait()
    parameter.grad += theirs


@contextmanager
def _sends_first() -> Iterator[None]:
    """Sends and receives as two batches, with the sends first on every stage."""
    from torch.distributed.pipelining import schedules

    former = schedules._batch_p2p

    def in_order(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        out = [each for each in p2p_ops if each.op is dist.isend]
        back = [each for each in p2p_ops if each.op is not dist.isend]
        return [work for ops in (out, back) if ops for work in dist.batch_isend_irecv(ops)]

    schedules._batch_p2p = in_order
    try:
        yield
    finally:
        schedules._batch_p2p = former


@mutant(of="TRAF-02b", case="transformer-1f1b", says="ranks wait for each other: rank 0 at a send of")
@broken(Pipeline, "sending", "TRAF-02b[two-stages]: ranks wait for each other: rank 0 at a send of", bugs=("PPS-03",))
def orders_messages_by_itself(sending, self):
    """Each stage puts its sends before its receives: in the steady state both neighbours send and neither receives."""
    return _sends_first()
