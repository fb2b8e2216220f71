"""The layouts of several ranks that train compiled."""

from __future__ import annotations

from dataclasses import replace

from contracts.checks._support.multi_rank_run import (
    borrowed,
    own,
)
from contracts.spec.training import Execution

COMPILED: dict[str, tuple[Execution, int]] = {
    name: (replace(execution, compile="blocks", backend="aot_eager"), execution.world)
    for name, execution in {
        "tp2": own(2, tp=2),
        "borrowed-tp2-sp-ep2-etp1": borrowed(2, tp=2, ep=2, etp=1, sp=True),
        "borrowed-tp2-sp-ep2-etp1-fsdp": borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True),
    }.items()
}


ALIKE = {name: COMPILED[name] for name in ("tp2",)}
