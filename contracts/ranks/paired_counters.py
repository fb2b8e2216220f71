"""What each process counts for itself and torch pairs ranks by: the next group, sharded tensor or call of RPC takes its
name from such a count. If one rank has counted on, the next test that makes one waits for ever.

All are private in torch, because nothing public has them. Seen in 2.11 to 2.13; `test_ranks_paired_counters.py` lists
what the module state of torch.distributed holds, so that a new one is noticed.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

APART = 1000  # what no rank counts to between two groups of a session


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One count: where it stands, how it is read, and how it becomes the same on all ranks. `what` is what is made."""

    what: str
    module: str
    read: Callable[[Any], int]
    even: Callable[[Any, int], object] = lambda module, count: None  # a new process group begins it anew

    def value(self) -> int:
        """0 where nobody has loaded the module."""
        module = sys.modules.get(self.module)
        return 0 if module is None else self.read(module)


def _set(name: str) -> Callable[[Any, int], object]:
    return lambda module, count: setattr(module, name, count)


COUNTERS = (
    Counter(what="process group made (new_group is for every rank, members or not)",
            module="torch.distributed.distributed_c10d", read=lambda module: int(module._world.group_count)),
    Counter(what="collective held back by an open coalescing manager", module="torch.distributed.distributed_c10d",
            read=lambda module: sum(map(len, module._world.pg_coalesce_state.values()))),
    Counter(what="sharded tensor made", module="torch.distributed._shard.sharded_tensor.api",
            read=lambda module: int(module._sharded_tensor_current_id), even=_set("_sharded_tensor_current_id")),
    Counter(what="start of RPC", module="torch.distributed.rpc", read=lambda module: int(module._init_counter),
            even=_set("_init_counter")),
    Counter(what="gathering by RPC", module="torch.distributed.rpc.api",
            read=lambda module: sum(module._all_gather_sequence_id.values()),
            even=lambda module, count: module._all_gather_sequence_id.clear()),
    Counter(what="group with symmetric memory", module="torch.distributed._symmetric_memory",
            read=lambda module: len(module._group_name_to_store),
            even=lambda module, count: module._group_name_to_store.clear()),
)  # fmt: skip


def counts() -> dict[str, int]:
    """What is made → how many, so far."""
    return {each.what: each.value() for each in COUNTERS}


def make_even(generation: int) -> None:
    """Begin anew, equally on all ranks, where a new process group does not: beyond what any has counted to."""
    for each in COUNTERS:
        if (module := sys.modules.get(each.module)) is not None:
            each.even(module, generation * APART)


def uneven(views: list[Mapping[str, int]]) -> list[tuple[int, str]]:
    """The counters in which ranks differ: the rank that has counted most, and the words."""
    found = []
    for what in dict.fromkeys(name for view in views for name in view):
        held = [view.get(what, 0) for view in views]
        least, most = min(held), max(held)
        if least != most:
            behind = ", ".join(str(rank) for rank, count in enumerate(held) if count == least)
            found.append((held.index(most), f"rank {held.index(most)} counts {most} × {what}, rank {behind} {least}"))
    return found
