"""How stages of a pipeline send to each other: always in batches.

NCCL puts the messages of a batch into one launch on the communicator of the group. A message by itself goes over a
communicator of its own pair of ranks, which is made on first use, while the peer may be waiting on the other one; torch
warns of it and the run hangs now and then. `torch.distributed.pipelining` sends a batch of one direction, and the vote
at its first step, message by message. The two doors that are closed here are private, looked at in torch 2.13; this
file is the one place that names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

STATIC = 1
"""The vote of a stage whose shapes are given."""


class BatchedStage(PipelineStage):
    """A stage whose shapes are known beforehand, so that there is nothing to vote on before the first microbatch.

    `input_args` and `output_args` must be given. The first call of a group has to be one that all its ranks make:
    whoever builds stages makes one beforehand.

    The schedule counts microbatches; what each is called with, and the stream that it brings, stand in `calls` and
    `streams`, by its number. They may differ in shape, of which torch's stage knows one: what it receives into is made
    anew for each.
    """

    calls: Sequence[Mapping[str, torch.Tensor]] = ()
    streams: Sequence[torch.Tensor] = ()

    def forward_one_chunk(self, fwd_chunk_id: int, args: tuple[Any, ...], *given: Any, **named: Any) -> Any:
        call = self.calls[fwd_chunk_id]
        return super().forward_one_chunk(fwd_chunk_id, (call["tokens_BT"],), dict(call), *given[1:], **named)

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        if not self.is_first:
            self.receive_into(self.args_recv_info)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(num_microbatches)
        if not self.is_last:
            self.receive_into(self.grad_recv_info)

    def receive_into(self, received: Mapping[int, tuple[Any, ...]]) -> None:
        """A buffer of its own shape for each microbatch."""
        for number, (info,) in received.items():
            info.buffer = torch.empty_like(self.streams[number], device=self.device, requires_grad=False)

    def _warmup_forward_vote(self, has_backward: bool, received_acc: torch.Tensor | None = None) -> torch.Tensor:
        return torch.tensor([STATIC], dtype=torch.int32, device=self.device)

    def _warmup_backward_result(self, received_result: torch.Tensor | None = None) -> torch.Tensor:
        return torch.tensor([STATIC], dtype=torch.int32, device=self.device)


@contextmanager
def batched() -> Iterator[None]:
    """Within it the schedules of torch send in batches only; afterwards they are as they were."""
    former = schedules._batch_p2p
    schedules._batch_p2p = exchanged
    try:
        yield
    finally:
        schedules._batch_p2p = former


def exchanged(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
    """All messages of a batch in one call; `desc` is for torch's log."""
    return dist.batch_isend_irecv(p2p_ops) if p2p_ops else []
