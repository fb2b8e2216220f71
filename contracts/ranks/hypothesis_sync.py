"""hypothesis on several ranks: the ranks agree after every example, so that all of them draw and shrink in step."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from contracts.ranks import plugin_compatibility
from contracts.ranks.job import Job
from contracts.ranks.merge import Post
from contracts.ranks.watchdog import Aborted, Region

GRACE_S = 0.2  # per example: a failing one is repeated some dozens of times
AFTER_S = 60.0  # what hypothesis gets beyond the limit of a test; no example begins in that time


class ExampleFailed(AssertionError):
    """Raised on every rank when an example failed on one. hypothesis identifies a failure by its type and place, so
    both must be equal on all ranks."""


@contextmanager
def in_step(item: pytest.Item, job: Job, region: Region) -> Iterator[None]:
    """Wrap a test's examples while it runs in `region`.

    The examples enforce the limit of the test, because all ranks are in step there: a rank interrupted between two
    examples would leave the others in one that it never enters. The test's own region is the last resort.
    """
    handle = plugin_compatibility.hypothesis_of(item)
    if handle is None:
        yield
        return
    inner, limit = handle.inner_test, region.limit
    region.limit += AFTER_S
    handle.inner_test = _agreed(inner, job, job.agreement.clock() + limit, limit)
    try:
        yield
    finally:
        handle.inner_test = inner


def _agreed(inner: Callable[..., Any], job: Job, until: float, limit: float) -> Callable[..., Any]:
    @functools.wraps(inner)
    def example(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        failure: BaseException | None = None
        left = max(until - job.agreement.clock(), 0.0)
        region = None
        try:
            with job.phase(f"its examples ({limit:g} s for all; this one)", left) as region:
                inner(*args, **kwargs)
        except BaseException as error:  # hypothesis' own control flow too: ranks must take the same path
            if region is None or isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)):
                raise
            failure = error
        _settle(job, region, failure, f"{kwargs or args}", late=job.agreement.clock() > until)

    return example


def _settle(job: Job, region: Region, failure: BaseException | None, drawn: str, *, late: bool) -> None:
    """Do what all ranks agree on. Past its limit, the test ends on all ranks or on none."""
    __tracebackhide__ = True
    aborted = job.why_aborted(region, raised=failure is not None)
    if late and failure is None:
        aborted = aborted or "the examples did not finish within the limit of the test"
    post = _post(job, region, failure, aborted)
    merged = job.agree(post, region, grace=GRACE_S, name="example")
    if merged.kind == "passed":
        return
    if merged.kind == "skipped" and failure is not None:
        raise failure  # everybody rejected it
    if merged.aborted and all(said != "failed" for said in merged.outcomes.values()):
        raise Aborted(f"in the example {drawn}: {merged.crash}")
    if job.poisoned:
        job.rebuild(lambda: None)
    raise ExampleFailed(f"{drawn}: {merged.crash}\n{merged.text}") from None


def _post(job: Job, region: Region, failure: BaseException | None, aborted: str) -> Post:
    rank = job.here.rank
    if failure is None:
        return Post(rank=rank, aborted=aborted, order=job.agreement.order(region.step) if aborted else 0)
    if _is_rejection(failure):
        return Post(rank=rank, kind="skipped", reason=type(failure).__name__)
    words = f"{type(failure).__name__}: {failure}"
    return Post(rank=rank, kind="failed", text=words, crash=words.partition("\n")[0], aborted=aborted, raised=True,
                order=job.agreement.order(region.step))  # fmt: skip


def _is_rejection(failure: BaseException) -> bool:
    """Whether hypothesis discards this example. StopTest is not public; it ends an example whose data ran out. Seen
    in 6.0 to 6.170."""
    return type(failure).__name__ in ("UnsatisfiedAssumption", "StopTest", "Skipped")
