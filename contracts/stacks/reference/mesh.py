"""The live mesh of the reference: the process groups that a rank holds, made in one order and taken down again.

Every rank of the default group makes every call, those for groups it is no member of included. A member set has one
group, whatever axes share it; the world keeps the group it has, and a rank alone needs none.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from contracts.instruments.ranks import device, torch_distributed
from contracts.spec.topology import Group, Topology, group_calls

TIMEOUT_S = 60.0  # `new_group` does not inherit the default group's: without one it waits for half an hour


class ProcessMesh:
    """The groups of one topology on this rank. The default group must hold the ranks of the topology."""

    def __init__(self, topology: Topology, *, timeout_s: float = TIMEOUT_S) -> None:
        self.topology = topology
        self.calls: list[Group] = []
        self._torch, self._dist = torch_distributed()
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[Group, Any] = {}
        self.rank = self._dist.get_rank()
        self.make()

    def make(self) -> None:
        """Every group of the mesh that is neither the world nor one rank alone, each member set once."""
        for call in group_calls(self.topology):
            if 1 < len(call.members) < self.topology.world:
                self._made[call.members] = self.create(call.members, ",".join(call.axes))

    def create(self, members: Group, axes: str) -> Any:
        """One call of `new_group`. The description names the axes in the flight recorder."""
        self.calls.append(members)
        return self._dist.new_group(list(members), timeout=self._timeout, group_desc=axes)

    def place(self, axis: str) -> Group:
        """The members of the group that this rank has on an axis, as the topology has them."""
        return next(group for group in self.topology.groups[axis] if self.rank in group)

    def group(self, axis: str) -> Any:
        """The process group of an axis; None where this rank is alone on it."""
        members = self.place(axis)
        if len(members) == 1:
            return None
        return self._dist.group.WORLD if len(members) == self.topology.world else self._made[members]

    def members(self, axis: str) -> Group:
        """The members of the process group of an axis, by rank in the group, as the group itself has them."""
        group = self.group(axis)
        return (self.rank,) if group is None else tuple(self._dist.get_process_group_ranks(group))

    def total(self, axis: str, contribution: int) -> int:
        """The sum of what the ranks of an axis contribute, at most 2⁶³ − 1."""
        group = self.group(axis)
        if group is None:
            return contribution
        total = self._torch.tensor([contribution], dtype=self._torch.int64, device=device())
        self._dist.all_reduce(total, group=group)
        return int(total.item())

    def close(self) -> None:
        """Take down what `make` made; the world stays."""
        for members, group in self._made.items():
            if self.rank in members:
                self._dist.destroy_process_group(group)
        self._made.clear()
