"""Records the point-to-point messages that this process issues, without replacing any function of torch.

`torch.distributed.P2POp` accepts only torch's own `isend` and `irecv`, and `send`, `recv` and `batch_isend_irecv` call
them too. So every message is a call of one of two functions, and a profile function (`sys.setprofile`) sees it with its
arguments and its caller. Messages of other threads are not seen.
"""

import itertools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

import torch.distributed as dist

from contracts.instruments.ranks import held_groups
from contracts.spec import Element, Group, Message

SENDS, RECEIVES = dist.isend.__code__, dist.irecv.__code__
BATCH = dist.batch_isend_irecv.__code__


@dataclass
class Seen:
    """The messages in order, the process groups at the time of the last one, and the warnings."""

    issued: list[Message] = field(default_factory=list)
    held: tuple[Group, ...] = ()
    warnings: list[str] = field(default_factory=list)
    batches: list[FrameType] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Seen]:
    """Record the messages that this thread issues, and the warnings that occur."""
    seen, former = Seen(), sys.getprofile()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in (SENDS, RECEIVES) and not _again(frame):
            seen.issued.append(_message(frame, seen.batches))
            seen.held = held_groups()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        sys.setprofile(look)
        try:
            yield seen
        finally:
            sys.setprofile(former)
            seen.warnings = [str(each.message) for each in warned]
            seen.batches.clear()


def _again(frame: FrameType) -> bool:
    """Whether a call comes out of another one, which a mode of torch took up and passes on."""
    callers = itertools.islice(_callers(frame), 8)
    return any(each.f_code is frame.f_code for each in callers)


def _callers(frame: FrameType) -> Iterator[FrameType]:
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


def _message(frame: FrameType, batches: list[FrameType]) -> Message:
    """The message of a call of `isend` or `irecv`. `batches` keeps the frames of the calls that issue batches."""
    sends, given, caller = frame.f_code is SENDS, frame.f_locals, frame.f_back
    assert caller is not None
    batched = caller.f_code is BATCH
    call = caller if batched else frame
    if not batches or batches[-1] is not call:
        batches.append(call)
    tensor = given["tensor"]
    return Message(
        sends=sends,
        peer=_peer(given, "dst" if sends else "src"),
        shape=tuple(tensor.shape),
        dtype=cast(Element, str(tensor.dtype).removeprefix("torch.")),
        batch=len(batches) - 1,
        batched=batched,
    )


def _peer(given: dict[str, Any], name: str) -> int:
    """The other rank, numbered in the world: given directly or by its rank in the group; -1 for any sender."""
    if given[name] is not None:
        return int(given[name])
    if given[f"group_{name}"] is None:
        return -1
    group = given["group"] or dist.group.WORLD
    assert group is not None
    return int(dist.get_global_rank(group, given[f"group_{name}"]))
