"""Asynchronous saves on several ranks that do not hold the state of the moment they were called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State


class _CopiesOnTheFirst(Checkpoints):
    def snapshot(self, state: State) -> State:
        if not dist.is_initialized() or dist.get_rank() == 0:
            return super().snapshot(state)
        return replace(state, tensors=dict(state.tensors), position=dict(state.position))


@mutant(of="CKPT-03g", case="the-last-is-late", says="step 9 was saved in the background, rank 1 late, and the state",
        bugs=("RSM-08",))  # fmt: skip
class CopiesTheStateOfTheFirstRank(Exchanged):
    """Only the rank that publishes copies its state; the others pass on references that training overwrites."""

    exchange = {"checkpoints": _CopiesOnTheFirst}


class _CopiesLate(Checkpoints):
    def save_later(self, state: State) -> None:
        held = replace(state, tensors=dict(state.tensors), position=dict(state.position))
        self.pending.append(self.writer.submit(lambda: self.save(self.snapshot(held))))


@mutant(of="CKPT-03g", case="the-first-is-late", says="step 98 was saved in the background, rank 0 late, and the state",
        bugs=("RSM-06",))  # fmt: skip
class CopiesWhenItsTurnComes(Exchanged):
    """Every rank copies its shards in the writer's thread. While the previous save is still being written, they become
    those of a later step.
    """

    exchange = {"checkpoints": _CopiesLate}


class _LooksFirst(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        self.wait()
        *_, before, _ = self.steps()
        return super().load(target, recipe=recipe, step=before if step is None else step)


@mutant(of="CKPT-03g", case="the-first-is-late", says="a load right after the save of step 100", bugs=("RSM-07",))
class LoadsTheOneBefore(Exchanged):
    """A load looks for the newest checkpoint before it waits for the saves, so the last one was not complete when it
    looked.
    """

    exchange = {"checkpoints": _LooksFirst}


class _CountsOn(Checkpoints):
    def snapshot(self, state: State) -> State:
        kept = super().snapshot(state)
        return kept if dist.get_rank() else replace(kept, position=state.position)


@mutant(of="CKPT-03g", case="the-middle-of-three", says="late, and its position is")
class CountsOnWhereItPublishes(Exchanged):
    """Shards are copied but the counters of the publishing rank are not, so they name a later place in the data."""

    exchange = {"checkpoints": _CountsOn}
