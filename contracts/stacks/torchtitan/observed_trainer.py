"""torchtitan's own `Trainer`, observed. Its configuration replaces the tokenizer, the data set and the logger.

Batches come from the session.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchtitan.config import Configurable
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer

from contracts.stacks.torchtitan import symbols
from contracts.stacks.torchtitan.recorded_step import (
    Given,
    Logged,
    RecordsGradients,
    among,
    by_itself,
    divided,
    own_rows,
)


class NullTokenizer(Configurable):  # type: ignore[misc]  # torchtitan is not installed where types are checked
    """Replaces the tokenizer."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        self.config = config


class Rows(symbols.data_loader()):  # type: ignore[misc]
    """Replaces the data set: this rank's rows of what it is `given` for validation. Batches of steps come from the
    session itself.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(symbols.data_loader().Config):  # type: ignore[misc]
        given: Given = ()
        size: int = 1
        infinite: bool = False

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
        self.config, self.ranks, self.rank = config, dp_world_size, dp_rank
        divided(config.given, dp_world_size)

    def __iter__(self) -> Iterator[Any]:
        return own_rows(self.config.given, self.ranks, self.rank, self.config.size)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class Seen(Logged, Configurable):  # type: ignore[misc]
    """Replaces the logger."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # type: ignore[misc]
        pass


class Observed(RecordsGradients, Trainer):  # type: ignore[misc]
    """Its trainer, in a world that is initialised. A single process gets degrees of its own."""

    def init_distributed(self) -> ParallelDims:
        return by_itself() if self.alone else among(self.config.parallelism)


class OneProcess(Observed):
    alone = True


class OneRank(Observed):
    alone = False
