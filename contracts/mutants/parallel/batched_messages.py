"""Mutants for `checks.parallel.batched_messages`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.parallel.pipeline import Pipeline
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


class _AsTorchDoes(Pipeline):
    def sending(self) -> AbstractContextManager[None]:
        return nullcontext()


@mutant(of="PAR-09", case="two-stages", says="messages outside a batch", bugs=("PPS-01",))
class SendsOneWayBatchesPlainly(Staged):
    """A batch in one direction becomes plain sends or receives, as in torch's schedules."""

    runs = _AsTorchDoes


@mutant(of="PAR-09", case="interleaved", says="messages outside a batch", bugs=("PPS-01",))
class SendsPlainlyBetweenInterleavedStages(Staged):
    """Between interleaved stages, each message is its own batch in one direction, and becomes a plain call."""

    runs = _AsTorchDoes


class _Voting(BatchedStage):
    """Votes as torch's stage does, which is the next of its bases but one."""

    def _warmup_forward_vote(self, *given: Any, **named: Any) -> Tensor:
        return super(BatchedStage, self)._warmup_forward_vote(*given, **named)

    def _warmup_backward_result(self, *given: Any, **named: Any) -> Tensor:
        return super(BatchedStage, self)._warmup_backward_result(*given, **named)


@mutant(of="PAR-09", case="four-stages", says="messages outside a batch, the first a")
class VotesPlainly(Staged):
    """The schedule sends in batches, but the stages agree on shapes before the first step with plain calls."""

    class runs(Pipeline):  # noqa: N801
        stage_class = _Voting


@mutant(of="PAR-09", case="tied", says="messages outside a batch")
class JoinsCopiesPlainly(Staged):
    """After the schedule, gradients of copies are exchanged by a plain send and a plain receive."""

    class trains(PipelineTrainer):  # noqa: N801
        def add(self, parameter: Tensor, peer: int) -> None:
            assert parameter.grad is not None
            theirs = torch.empty_like(parameter.grad)
            sent = dist.isend(parameter.grad.clone(), peer, group=self.group)
            dist.recv(theirs, peer, group=self.group)
            assert sent is not None
            sent.wait()
            parameter.grad += theirs
