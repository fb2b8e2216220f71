"""The place of this process among the ranks: read from torchrun's environment once, then a value."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank this process is, and of which job.

    `attempt` counts from 0 how often this node's torchrun has started its ranks, `restarts_left` is how many starts may
    follow. `local_size` counts the ranks of this node. `agent_store` says whether the store is torchrun's own and so
    outlives this process, `agent` is torchrun's process. `host` names the node: a torchrun of a machine, for two of
    them on one machine are two nodes.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    attempt: int = 0
    restarts_left: int = 0
    agent_store: bool = False
    agent: int = 0
    host: str = ""

    @property
    def speaks(self) -> bool:
        """Whether this rank writes to the console and to report files."""
        return self.rank == 0


def from_environment(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun gave, or None where there is only one rank."""
    if int(environment.get("WORLD_SIZE") or 1) < 2 or "RANK" not in environment:
        return None
    return Place(
        rank=int(environment["RANK"]),
        size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment.get("LOCAL_RANK", environment["RANK"])),
        local_size=int(environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"])),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=int(environment.get("MASTER_PORT", 29500)),
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        restarts_left=int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0))
        - int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        agent=os.getppid(),
        host=f"{socket.gethostname()}/{os.getppid()}",
    )


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What the ranks of one torchrun leave on this host: logs, stacks, last words, the journal.

    Its name holds torchrun's process id and start, equal for every rank and every restart and never seen before:
    nothing of an earlier run can be taken for this one's.
    """

    path: Path

    def log(self, rank: int, attempt: int) -> Path:
        return self.path / f"rank{rank}.{attempt}.log"

    def stacks(self, rank: int, attempt: int) -> Path:
        return self.path / f"rank{rank}.{attempt}.stacks"

    def last_words(self, rank: int, attempt: int) -> Path:
        return self.path / f"rank{rank}.{attempt}.last.json"

    def attempts(self, rank: int) -> int:
        """How often a rank has begun here. torchrun does not count a restart that another node has caused."""
        return len(list(self.path.glob(f"rank{rank}.*.stacks")))

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def complete(self) -> Path:
        """Holds the exit code once a session has ended; a restart after that has nothing to do."""
        return self.path / "complete"


def folder(chosen: str | None, agent: int) -> Folder:
    """The folder of this torchrun below `chosen`, or below the system's temporary folder."""
    base = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"pytest-ranks-{os.getuid()}"
    path = base.absolute() / f"torchrun-{agent}-{started(agent)}"
    path.mkdir(parents=True, exist_ok=True)
    return Folder(path=path)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(pid: int) -> int:
    """When a process of this host began, in clock ticks since boot; 0 where it is gone. Tells a reused id."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def state(pid: int, begun: int) -> str:
    """How a process of this host is: "alive", "stopped" by a signal, or "gone" (also when its id is another's now)."""
    fields = _stat(pid)
    if not fields or fields[0] in "ZX" or int(fields[19]) != begun:
        return "gone"
    return "stopped" if fields[0] == "T" else "alive"
