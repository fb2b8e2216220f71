"""What the observed trainers of 0.3.0 and 0.2.2 have alike: degrees, what is logged, the gradients of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchtitan.distributed import ParallelDims
from torchtitan.tools.utils import NoColor


class Alone(ParallelDims):  # type: ignore[misc]  # torchtitan is not installed where types are checked
    """The degrees of one process alone, whatever its world: no mesh is built, and nothing is sent."""

    def build_mesh(self) -> Any:
        raise AssertionError("a process by itself has no mesh")

    def get_optional_mesh(self, dims: Any, **_: Any) -> None:
        return None


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
        self.loss, self.norm, self.validation = float("nan"), float("nan"), float("nan")

    def should_log(self, step: int) -> bool:
        return True

    def log(self, step: int, loss: float, largest: float, norm: float, extra_metrics: Any = None) -> None:
        self.loss, self.norm = float(loss), norm

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

    def forward_backward_step(self, *, global_valid_tokens: Tensor, **rest: Any) -> Tensor:
        step: Any = super()
        loss: Tensor = step.forward_backward_step(global_valid_tokens=global_valid_tokens, **rest)
        self.tokens, self.parts = int(global_valid_tokens), self.parts + 1
        if self.parts % self.gradient_accumulation_steps == 0 and self.before_clip is not None:
            self.before_clip(self)
        return loss
