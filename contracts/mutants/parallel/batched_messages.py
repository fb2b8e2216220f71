"""Counterexamples of `checks.parallel.batched_messages`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.parallel.pipeline import Pipeline
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


class _AsTorchDoes(Pipeline):
    def sending(self) -> AbstractContextManager[None]:
        return nullcontext()


@mutant(of="PAR-09", case="two-stages", says="messages by themselves", bugs=("PPS-01",))
class SendsOneWayBatchesPlainly(Staged):
    """A batch in one direction is taken apart into plain sends or receives, as torch's schedules do."""

    runs = _AsTorchDoes


@mutant(of="PAR-09", case="interleaved", says="messages by themselves", bugs=("PPS-01",))
class SendsPlainlyBetweenInterleavedStages(Staged):
    """Between interleaved stages each message is a batch of one direction."""

    runs = _AsTorchDoes


class _Voting(BatchedStage):
    _warmup_forward_vote = PipelineStage._warmup_forward_vote
    _warmup_backward_result = PipelineStage._warmup_backward_result


@mutant(of="PAR-09", case="four-stages", says="messages by themselves, the first a")
class VotesPlainly(Staged):
    """Only the schedule sends in batches; the vote on shapes before the first step goes stage by stage."""

    class runs(Pipeline):  # noqa: N801
        stage_class = _Voting


@mutant(of="PAR-09", case="tied", says="messages by themselves")
class JoinsCopiesPlainly(Staged):
    """Gradients of copies are exchanged behind the schedule, by a send and a receive."""

    class trains(PipelineTrainer):  # noqa: N801
        def add(self, parameter: Tensor, peer: int) -> None:
            assert parameter.grad is not None
            theirs = torch.empty_like(parameter.grad)
            sent = dist.isend(parameter.grad.clone(), peer, group=self.group)
            dist.recv(theirs, peer, group=self.group)
            assert sent is not None
            sent.wait()
            parameter.grad += theirs
