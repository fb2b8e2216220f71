"""The layouts on which several ranks start and update in mixed precision."""

from __future__ import annotations

from contracts.checks._support.multi_rank_run import borrowed, own
from contracts.spec.training import Execution

MIXED: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "dp2": own(2),
        "fsdp2": own(2, fsdp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "hsdp-2x2": own(4, fsdp=True, replicas=2),
    }.items()
}
