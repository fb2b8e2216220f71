"""hypothesis among several ranks: every example ends in an agreement, so that all ranks draw and shrink in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from contracts.harness.ranks import neighbours
from contracts.harness.ranks.job import Job
from contracts.harness.ranks.merge import Post
from contracts.harness.ranks.watchdog import Aborted

GRACE_S = 0.2  # of one example: a failing one is tried again some dozens of times


class ExampleFailed(AssertionError):
    """Raised on every rank where an example failed on one. hypothesis knows a failure by its type and place, so these
    have to be equal."""


@contextmanager
def in_step(item: pytest.Item, job: Job, limit: float) -> Iterator[None]:
    """Wrap a test's examples while it runs."""
    handle = neighbours.hypothesis_of(item)
    if handle is None:
        yield
        return
    inner = handle.inner_test
    handle.inner_test = _agreed(inner, job, limit)
    try:
        yield
    finally:
        handle.inner_test = inner


def _agreed(inner: Callable[..., Any], job: Job, limit: float) -> Callable[..., Any]:
    def example(*args: Any, **kwargs: Any) -> None:
        failure: BaseException | None = None
        region = None
        try:
            with job.phase("an example", limit) as region:
                inner(*args, **kwargs)
        except BaseException as error:  # hypothesis' own control flow too: ranks have to take the same turn
            if isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)):
                raise
            failure = error
        assert region is not None
        _settle(job, region, failure, f"{kwargs or args}")

    example.__name__ = getattr(inner, "__name__", "example")
    return example


def _settle(job: Job, region: Any, failure: BaseException | None, drawn: str) -> None:
    aborted = job.why_aborted(region, raised=failure is not None)
    post = _post(job, failure, aborted)
    merged = job.agree(post, region, grace=GRACE_S)
    if merged.kind == "passed":
        return
    if merged.kind == "skipped" and failure is not None:
        raise failure  # everybody rejected it
    if merged.aborted and all(said != "failed" for said in merged.outcomes.values()):
        raise Aborted(f"in the example {drawn}: {merged.crash}")
    if job.poisoned:
        job.rebuild(lambda: None)
    raise ExampleFailed(f"{drawn}: {merged.crash}\n{merged.text}") from None


def _post(job: Job, failure: BaseException | None, aborted: str) -> Post:
    rank = job.here.rank
    if failure is None:
        return Post(rank=rank, aborted=aborted, order=job.order() if aborted else 0)
    if _is_rejection(failure):
        return Post(rank=rank, kind="skipped", reason=type(failure).__name__)
    words = f"{type(failure).__name__}: {failure}"
    return Post(rank=rank, kind="failed", text=words, crash=words.partition("\n")[0], aborted=aborted, raised=True,
                order=job.order())  # fmt: skip


def _is_rejection(failure: BaseException) -> bool:
    """Whether hypothesis asked for this example to be given up. StopTest is not public; it ends an example whose data
    ran out. Seen in 6.0 to 6.170."""
    return type(failure).__name__ in ("UnsatisfiedAssumption", "StopTest", "Skipped")
