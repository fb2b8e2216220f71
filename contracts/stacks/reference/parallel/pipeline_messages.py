"""Messages between pipeline stages: always sent in batches.

NCCL puts the messages of a batch into one launch on the group's communicator. A single message uses a communicator of
its pair of ranks, which is created on first use. Meanwhile the peer may wait on the other communicator: torch warns of
this, and the run sometimes hangs. `torch.distributed.pipelining` sends single messages for batches of one direction,
and for the vote at its first step. The functions replaced here are private, those of torch 2.11 to 2.13; only this
file names them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
else:
    PipelineStage = object  # importing torch's imports its compiler, a second of CPU time: see `over_torch`

STATIC = 1
"""The vote of a stage with known shapes."""


class BatchedStage(PipelineStage):
    """A stage whose shapes are known in advance, so that no vote is needed before the first microbatch.

    `input_args` and `output_args` must be given. All ranks of a group must make its first call, so whoever builds
    stages makes such a call first.

    The schedule passes only the number of a microbatch; `calls` and `streams` have its arguments and its stream, by
    number. Microbatches may differ in shape, but torch's stage knows only one shape, so each gets a new receive buffer.
    """

    calls: Sequence[Mapping[str, torch.Tensor]] = ()
    streams: Sequence[torch.Tensor] = ()

    def forward_one_chunk(self, fwd_chunk_id: int, args: tuple[Any, ...], *given: Any, **named: Any) -> Any:
        call = self.calls[fwd_chunk_id]
        return super().forward_one_chunk(fwd_chunk_id, (call["tokens_BT"],), dict(call), *given[1:], **named)

    def _prepare_forward_infra(self, *given: Any, **named: Any) -> Any:
        prepared = super()._prepare_forward_infra(*given, **named)
        if not self.is_first:
            self.receive_into(self.args_recv_info)
        return prepared

    def _prepare_backward_infra(self, *given: Any, **named: Any) -> Any:
        prepared = super()._prepare_backward_infra(*given, **named)
        if not self.is_last:
            self.receive_into(self.grad_recv_info)
        return prepared

    def receive_into(self, received: Mapping[int, tuple[Any, ...]]) -> None:
        """Receive buffers of the microbatches' shapes. In torch 2.11 those of activations require a gradient."""
        for number, (info,) in received.items():
            info.buffer = torch.empty_like(
                self.streams[number], device=self.device, requires_grad=info.buffer.requires_grad
            )

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Nothing: torch 2.11 would refuse a microbatch of another shape than the first; 2.13 does not call this."""

    def _warmup_forward_vote(self, has_backward: bool, received_acc: torch.Tensor | None = None) -> torch.Tensor:
        return torch.tensor([STATIC], dtype=torch.int32, device=self.device)

    def _warmup_backward_result(self, received_result: torch.Tensor | None = None) -> torch.Tensor:
        return torch.tensor([STATIC], dtype=torch.int32, device=self.device)


@lru_cache(maxsize=4)  # with a bound, as what a mutant changes is dropped
def over_torch(stage: type[BatchedStage]) -> type[BatchedStage]:
    """The class with torch's stage below it, for a pipeline that runs."""
    from torch.distributed.pipelining import PipelineStage

    return type(stage.__name__, (stage, PipelineStage), {})


@contextmanager
def batched() -> Iterator[None]:
    """Inside, torch's schedules send in batches only; at the end they are restored."""
    from torch.distributed.pipelining import schedules

    former = schedules._batch_p2p
    schedules._batch_p2p = exchanged
    try:
        yield
    finally:
        schedules._batch_p2p = former


def exchanged(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
    """All messages of a batch in one call; `desc` is for torch's log."""
    return dist.batch_isend_irecv(p2p_ops) if p2p_ops else []
