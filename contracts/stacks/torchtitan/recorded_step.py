"""What the observed trainers of 0.3.0 and 0.2.2 have alike: degrees, what is logged, the gradients of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torchtitan.distributed import ParallelDims
from torchtitan.tools.utils import NoColor

from contracts.spec import NotOffered, refuse
from contracts.stacks.torchtitan import symbols


class Alone(ParallelDims):  # type: ignore[misc]  # torchtitan is not installed where types are checked
    """The degrees of a single process, whatever its world: no mesh is built, and nothing is sent."""

    def build_mesh(self) -> Any:
        raise AssertionError("a process by itself has no mesh")

    def get_optional_mesh(self, dims: Any, **_: Any) -> None:
        return None


def by_itself() -> Alone:
    """The degrees of a process that is one of no others."""
    one = symbols.knows(Alone, dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)
    return Alone(**one, **symbols.dtensors())


def among(config: Any) -> ParallelDims:
    """The degrees of a world: `ParallelDims.from_config` since April 2026, before its constructor."""
    if hasattr(ParallelDims, "from_config"):
        return ParallelDims.from_config(config, torch.distributed.get_world_size())
    return ParallelDims(
        dp_shard=config.data_parallel_shard_degree, dp_replicate=config.data_parallel_replicate_degree, cp=1,
        tp=config.tensor_parallel_degree, pp=config.pipeline_parallel_degree, ep=config.expert_parallel_degree,
        etp=config.expert_tensor_parallel_degree, world_size=torch.distributed.get_world_size(),
    )  # fmt: skip


Given = tuple[tuple[Tensor, Tensor], ...]
"""Tokens and labels of each batch of a validation."""


def divided(given: Given, ranks: int) -> None:
    """
    Raises:
        Refused: for a batch whose rows the ranks do not divide.
    """
    for rows in (len(each) for each, _ in given if len(each) % ranks):
        raise refuse("validation", rows, f"must be a multiple of dp ({ranks})", "choose a multiple")


def own_rows(given: Given, ranks: int, rank: int, size: int) -> Iterator[Any]:
    """A rank's rows of a validation, `size` at a time, as its trainer reads them."""
    for tokens_BT, labels_BT in given:
        own = tokens_BT.chunk(ranks)[rank], labels_BT.chunk(ranks)[rank]
        for tokens, labels in zip(*(torch.split(each, size) for each in own), strict=True):
            yield symbols.batch_of(tokens, labels)


class Logged:
    """Replaces the logger: keeps what the trainer logs of a step."""

    class Memory:
        device_name = "cpu"
        max_reserved_gib = max_reserved_pct = 0.0

        def get_peak_stats(self) -> Logged.Memory:
            return self

    def __init__(self, *_: Any, **__: Any) -> None:
        self.color, self.device_memory_monitor = NoColor(), self.Memory()
        self.num_flops_per_token, self.ntokens_since_last_log = 0, 0
        self.data_loading_times: list[float] = []
        self.loss = self.largest = self.norm = self.validation = float("nan")

    def should_log(self, step: int) -> bool:
        return True

    def log(self, step: int, loss: float, largest: float, norm: float, extra_metrics: Any = None) -> None:
        self.loss, self.largest, self.norm = float(loss), float(largest), norm

    def log_validation(self, loss: float, step: int) -> None:
        self.validation = loss

    def close(self) -> None:
        pass


class RecordsGradients:
    """Stands before a `Trainer` among the bases. `before_clip` is called with the trainer after the last gradient of a
    step."""

    alone: bool
    gradient_accumulation_steps: int
    before_clip: Callable[[Any], None] | None = None
    parts = 0
    tokens = 0

    def forward_backward_step(
        self, input_dict: Any, labels: Tensor, *, global_valid_tokens: Tensor | None = None, **rest: Any
    ) -> Tensor:
        step: Any = super()
        if symbols.counts_labels(type(self)):
            rest["global_valid_tokens"] = global_valid_tokens
        loss: Tensor = step.forward_backward_step(input_dict=input_dict, labels=labels, **rest)
        self.tokens = self._counted(labels, rest.get("global_valid_tokens"))
        self.parts += 1
        if self.parts % self.gradient_accumulation_steps == 0 and self.before_clip is not None:
            self.before_clip(self)
        return loss

    def _counted(self, labels: Tensor, told: Tensor | None) -> int:
        """The labels of the step that count, as its trainer has counted them, or those that a trainer that counts none
        is given.

        Raises:
            NotOffered: where those of other ranks would be among them.
        """
        if told is not None:
            return int(told)
        if not self.alone:
            raise NotOffered("torchtitan: up to January 2026 its trainer counted no labels over ranks", "stack")
        before = self.tokens if self.parts % self.gradient_accumulation_steps else 0
        return before + int((labels != -100).sum())
