"""The place of this process among the ranks, read once from torchrun's environment."""

import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

EQUAL = pytest.StashKey[dict[str, object]]()
"""What else must be the same on every rank before the first test, by its name: other plugins put it in the stash."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank this process is, and in which job.

    `attempt` counts from 0 how often this node's torchrun has started its ranks; `restarts_left` starts may follow.
    `local_size` is the number of ranks on this node. `agent_store` says whether the store belongs to torchrun and so
    outlives this process; `agent` is the process of torchrun. `host` names the machine and its torchrun,
    because two torchruns on a machine are two nodes.
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


_LEAST = {
    "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "MASTER_PORT": 1,
    "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
}  # fmt: skip
"""The least value of each number that torchrun writes."""
_REMEDY = "start the ranks with torchrun, or unset WORLD_SIZE and RANK for one process"


def several(environment: Mapping[str, str]) -> bool:
    """Whether the environment speaks of several ranks, be it rightly or with an error that `from_environment` names."""
    return (environment.get("WORLD_SIZE") or "1").strip() != "1"


def from_environment(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun gave this process; None for a single rank.

    Raises:
        ValueError: names every variable that is missing or is not what torchrun writes. A process that knows of others
            but not which of them it is would judge by itself and be green for all of them.
    """
    if not several(environment):
        return None
    numbers = _launched(environment)
    size = numbers["WORLD_SIZE"]
    return Place(
        rank=numbers["RANK"],
        size=size,
        local_rank=numbers["LOCAL_RANK"],
        local_size=numbers.get("LOCAL_WORLD_SIZE", size),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=numbers.get("MASTER_PORT", 29500),
        attempt=(attempt := numbers.get("TORCHELASTIC_RESTART_COUNT", 0)),
        restarts_left=numbers.get("TORCHELASTIC_MAX_RESTARTS", 0) - attempt,
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        agent=os.getppid(),
        host=f"{socket.gethostname()}/{os.getppid()}",
    )


def _launched(environment: Mapping[str, str]) -> dict[str, int]:
    """As `contracts.instruments.ranks.launched`, which this package, since it stands by itself, does not import."""
    numbers: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for name, least in _LEAST.items():
        said = environment.get(name)
        if said and said.strip().isdecimal() and int(said) >= least:
            numbers[name] = int(said)
        elif said or name in ("RANK", "LOCAL_RANK"):
            wrong[name] = f"is not a whole number of at least {least}" if said else "is not set"
    node = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in numbers else "WORLD_SIZE"
    for name, bound in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", node)):
        if {name, bound} <= numbers.keys() and numbers[name] >= numbers[bound]:
            wrong[name] = f"is not below {bound}, {environment[bound]}"
    if wrong:
        raise ValueError(
            "\n".join(f"{name} = {environment.get(name)!r}: {why}; {_REMEDY}" for name, why in wrong.items())
        )
    return numbers


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The files of the ranks of one torchrun on this host: logs, stacks, last words, the journal.

    Its name has torchrun's process id and start time, which are equal for all ranks and restarts and belong to no
    earlier run.
    """

    path: Path

    def log(self, rank: int, attempt: int) -> Path:
        return self.path / f"rank{rank}.{attempt}.log"

    def stacks(self, rank: int, attempt: int) -> Path:
        return self.path / f"rank{rank}.{attempt}.stacks"

    def last_words(self, rank: int, attempt: int) -> Path:
        return self.path / f"rank{rank}.{attempt}.last.json"

    def attempts(self, rank: int) -> int:
        """How often a rank has started here. torchrun does not count restarts that another node caused."""
        return len(list(self.path.glob(f"rank{rank}.*.stacks")))

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def complete(self) -> Path:
        """The file with the exit code of a finished session; a restart after that has nothing to do."""
        return self.path / "complete"


def folder(chosen: str | None, agent: int) -> Folder:
    """The folder of this torchrun below `chosen`, or below the system's temporary folder. It holds what the ranks print
    as they print it, so only their user may look into it."""
    base = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"pytest-ranks-{os.getuid()}"
    path = base.absolute() / f"torchrun-{agent}-{started(agent)}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Folder(path=path)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(pid: int) -> int:
    """When a process of this host started, in clock ticks since boot; 0 if it is gone. Reveals a reused id."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def state(pid: int, begun: int) -> str:
    """The state of a process of this host: "alive", "stopped" by a signal, or "gone", also when its id was reused."""
    fields = _stat(pid)
    if not fields or fields[0] in "ZX" or int(fields[19]) != begun:
        return "gone"
    return "stopped" if fields[0] == "T" else "alive"
