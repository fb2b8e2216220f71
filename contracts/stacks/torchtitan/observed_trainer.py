"""torchtitan's own `Trainer`, observed. Its configuration replaces the tokenizer, the data set and the logger.

Batches come from the session. Two methods of the trainer are wrapped to record the gradients before they are clipped,
and what it would have logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.config import Configurable
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer


class Nothing(Configurable):  # type: ignore[misc]  # torchtitan is not installed where types are checked
    """Replaces the tokenizer."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        self.config = config


class Rows(BaseDataLoader):  # type: ignore[misc]
    """Replaces the data set: this rank's rows of what it is `given` for validation. Batches of steps come from the
    session itself.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        given: tuple[tuple[Tensor, Tensor], ...] = ()
        infinite: bool = False

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any) -> None:
        self.config, self.ranks, self.rank, self.size = config, dp_world_size, dp_rank, local_batch_size

    def __iter__(self) -> Iterator[Any]:
        for tokens_BT, labels_BT in self.config.given:
            own = tokens_BT.chunk(self.ranks)[self.rank], labels_BT.chunk(self.ranks)[self.rank]
            for tokens, labels in zip(*(torch.split(each, self.size) for each in own), strict=True):
                yield {"input": tokens}, labels

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class Seen(Configurable):  # type: ignore[misc]
    """Replaces the logger: keeps what the trainer logs of a step."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # type: ignore[misc]
        pass

    class Memory:
        device_name = "cpu"
        max_reserved_gib = max_reserved_pct = 0.0

        def get_peak_stats(self) -> Seen.Memory:
            return self

    def __init__(self, config: Config, **_: Any) -> None:
        from torchtitan.tools.utils import NoColor

        self.color, self.device_memory_monitor = NoColor(), self.Memory()
        self.num_flops_per_token, self.ntokens_since_last_log = 0, 0
        self.data_loading_times: list[float] = []
        self.loss, self.norm, self.validation = float("nan"), float("nan"), float("nan")

    def should_log(self, step: int) -> bool:
        return True

    def log(self, step: int, loss: float, largest: float, norm: float, extra_metrics: Any = None) -> None:
        self.loss, self.norm = loss, norm

    def log_validation(self, loss: float, step: int) -> None:
        self.validation = loss

    def close(self) -> None:
        pass


class Alone(ParallelDims):  # type: ignore[misc]
    """The degrees of one process alone, whatever its world: no mesh is built, and nothing is sent."""

    def build_mesh(self) -> Any:
        raise AssertionError("a process by itself has no mesh")

    def get_optional_mesh(self, dims: Any, **_: Any) -> None:
        return None


class Observed(Trainer):  # type: ignore[misc]
    """`before_clip` is called with the trainer after the last gradient of a step."""

    alone: bool
    before_clip: Callable[[Observed], None] | None = None
    parts = 0
    tokens = 0

    def init_distributed(self) -> ParallelDims:
        """The world is already initialised. A process alone gets degrees of its own."""
        parallelism = self.config.parallelism
        if not self.alone:
            return ParallelDims.from_config(parallelism, torch.distributed.get_world_size())
        return Alone(
            dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, world_size=1, spmd_backend=parallelism.spmd_backend
        )

    def forward_backward_step(self, *, global_valid_tokens: Tensor, **rest: Any) -> Tensor:
        loss: Tensor = super().forward_backward_step(global_valid_tokens=global_valid_tokens, **rest)
        self.tokens, self.parts = int(global_valid_tokens), self.parts + 1
        if self.parts % self.gradient_accumulation_steps == 0 and self.before_clip is not None:
            self.before_clip(self)
        return loss


class OneProcess(Observed):
    alone = True


class OneRank(Observed):
    alone = False
