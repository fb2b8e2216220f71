"""Mutants for `checks.parallel.batched_messages`."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.law._bugs.broken import broken, derived
from contracts.stacks.reference.parallel.pipeline import Pipeline
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


@broken(
    Pipeline,
    "sending",
    "PAR-09[two-stages]: messages outside a batch",
    "PAR-09[interleaved]: messages outside a batch",
    bugs=("PPS-01",),
)
def sends_one_way_batches_plainly(sending, self):
    """A batch in one direction becomes plain sends or receives, as in torch's schedules."""
    return nullcontext()


@derived("PAR-09[four-stages]: messages outside a batch, the first a")
class VotesPlainly(BatchedStage):
    """The schedule sends in batches, but the stages agree on shapes before the first step with plain calls."""

    def _warmup_forward_vote(self, *given: Any, **named: Any) -> Tensor:
        return super(BatchedStage, self)._warmup_forward_vote(*given, **named)

    def _warmup_backward_result(self, *given: Any, **named: Any) -> Tensor:
        return super(BatchedStage, self)._warmup_backward_result(*given, **named)


@broken(PipelineTrainer, "add", "PAR-09[tied]: messages outside a batch")
def joins_copies_plainly(add, self, parameter, peer):
    """After the schedule, gradients of copies are exchanged by a plain send and a plain receive."""
    theirs = torch.empty_like(parameter.grad)
    sent = dist.isend(parameter.grad.clone(), peer, group=self.group)
    dist.recv(theirs, peer, group=self.group)
    sent.wait()
    parameter.grad += theirs
