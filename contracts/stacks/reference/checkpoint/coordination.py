"""Coordination of the ranks that save or load one checkpoint: they refuse, and choose a step, together.

A rank that refuses by itself leaves the others waiting in a collective. A rank that chooses by itself loads another
step.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException

from contracts.instruments.ranks import gathered
from contracts.spec import Refusal, Refusals, Refused


@dataclass(frozen=True, kw_only=True)
class CheckpointRanks:
    """The ranks of a checkpoint. Without a process group, or with `alone`, this process only.

    Args:
        group: the ranks; None is all of them.
    """

    group: ProcessGroup | None = None
    alone: bool = False

    @property
    def single(self) -> bool:
        return self.alone or not dist.is_initialized()

    def all_gather(self, value: Any) -> tuple[Any, ...]:
        """Every rank's value, by rank. `value` must be JSON."""
        return (value,) if self.single else gathered(value, self.group)

    def refuse_together(self, found: Refusals) -> None:
        """Refuse on every rank what any rank refuses; equal refusals are reported once.

        Raises:
            Refused: when a rank has a refusal.
        """
        own = [asdict(each) for each in found]
        every = [(rank, Refusal(**each)) for rank, told in enumerate(self.all_gather(own)) for each in told]
        if every:
            raise Refused(dict.fromkeys(_named(rank, each, self.single) for rank, each in _once(every)))


def _once(every: list[tuple[int, Refusal]]) -> list[tuple[int, Refusal]]:
    first: dict[Refusal, int] = {}
    for rank, each in every:
        first.setdefault(each, rank)
    return [(rank, each) for each, rank in first.items()]


def _named(rank: int, refusal: Refusal, single: bool) -> Refusal:
    """A refusal that names the first rank that found it."""
    if single or rank == 0:
        return refusal
    return Refusal(**asdict(refusal) | {"problem": f"{refusal.problem} (found on rank {rank})"})


@contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """Unwrap DCP's errors: the refusals of all ranks become one, and so does a failing disk."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            yield
    except CheckpointException as error:
        found = Refusals()
        for rank, (cause, _) in sorted(error.failures.items()):
            if isinstance(cause, Refused):
                found.extend(cause)
            elif isinstance(cause, OSError):
                problem = f"rank {rank} cannot use it: {cause.strerror or cause}"
                found.add("folder", str(folder), problem, "give a volume with space")
            else:
                raise cause from None
        found.raise_any()
