"""A trace as the OBS checks read it."""

import functools
from collections.abc import Iterable
from pathlib import Path

from contracts.observe.merged import Merged
from contracts.observe.trace import read
from contracts.spec import NotOffered, Observing

RUN = {"one-run": ()}
"""The only case: whatever run was observed."""
MOST = 20
BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Of the significand, with the one that is not stored."""


def observed(stack: Observing) -> Merged:
    """The trace that a stack gives, with at least one whole step.

    Raises:
        NotOffered: where it has none; OBS-16 is violated then.
    """
    merged = merged_of(stack)
    if not merged.steps:
        raise NotOffered("the trace has no whole step", "case")
    return merged


def merged_of(stack: Observing, run: str = "judged", behind: int = 0) -> Merged:
    folder = Path(stack.trace(run))
    return _merged(
        folder, behind, tuple((each.name, each.stat().st_mtime_ns) for each in sorted(folder.glob("rank-*")))
    )


@functools.lru_cache(maxsize=3)
def _merged(folder: Path, behind: int, _written: tuple[tuple[str, int], ...]) -> Merged:
    """Read once for all contracts: a trace of many ranks takes longer to read than to judge."""
    return Merged(read(folder), behind)


def none_of(compared: Iterable[str], nothing: str) -> None:
    """Fail with everything that is wrong, if anything is; what stands first went wrong first.

    Args:
        compared: what is wrong, and an empty text for each comparison in which nothing is.
        nothing: what the run has not, in words, if nothing was compared.

    Raises:
        NotOffered: where nothing was compared. None of nothing does not hold.
    """
    every = list(compared)
    if not every:
        raise NotOffered(nothing, "case")
    found = list(dict.fromkeys(filter(None, every)))
    more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
    assert not found, "; ".join([*found[:MOST], *more])
