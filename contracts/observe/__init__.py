"""Observe: record what a training script does, without an adapter, and compare or judge the recording.

A script that the recorder cannot follow by itself may say more with four calls. Without a recorder they do nothing.

>>> from contracts import observe
>>> observe.model(net)          # a root module, where the script calls parts of it and never the whole
>>> observe.optimizer(mine)     # an optimizer that does not derive from torch.optim.Optimizer
>>> observe.step()              # a step ends here
>>> observe.dropped(5)          # so many assignments of the router that ran last go to no expert
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.observe.recorder import Recorder

ACTIVE: list[Recorder] = []
"""The recorder of this process, where there is one."""


def model(root: Any) -> None:
    """Name the parameters and modules of `root`, a torch module, as one model."""
    for recorder in ACTIVE:
        recorder.add_root(root)


def optimizer(held: Any) -> None:
    """Observe the `step` of an optimizer that has torch's `param_groups` and is no torch.optim.Optimizer."""
    for recorder in ACTIVE:
        recorder.add_optimizer(held)


def dropped(assignments: int) -> None:
    """Say how many assignments of the router that ran last go to no expert, as where an expert is full (OBS-18)."""
    for recorder in ACTIVE:
        recorder.told_dropped(assignments)


def step(microbatches: int | None = None) -> None:
    """End a step, in a script whose optimizer the recorder cannot see; or say how many microbatches the step that ends
    next has (OBS-07)."""
    for recorder in ACTIVE:
        recorder.told_step(microbatches)
