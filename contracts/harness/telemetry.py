"""Telemetry that a run writes for its launcher: each line is one JSON object with one key, in the file that
`RANKPROOF_TELEMETRY` names.

    {"step": {"number": 1, "seconds": 2.0, "tokens": 262144, "loss": 9.7, "grad_norm": 3.1}}
    {"memory": {"rank": 3, "allocated": 94489280512, "reserved": 104152956928}}
    {"backend": {"part": "attention", "requested": "flash4", "actual": "flash2", "reason": "…"}}
    {"place": {"local_rank": 3, "device": 3, "bus": "0000:5d:00.0", "nic": "mlx5_1"}}

Rank 0 writes steps; every rank writes its own memory and place. A line of any other form is counted and left out: a run
does not lose its receipt over one line, and the receipt says that lines were lost.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.spec import Refused, codec
from contracts.spec.receipt import Backend, Place, RankMemory, ReportedStep

VARIABLE = "RANKPROOF_TELEMETRY"
KINDS: Mapping[str, type] = {"step": ReportedStep, "memory": RankMemory, "backend": Backend, "place": Place}


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The steps that the run wrote, in order; `lost` is the number of lines that could not be read."""

    steps: tuple[ReportedStep, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    backends: tuple[Backend, ...] = ()
    places: tuple[Place, ...] = ()
    lost: int = 0


def read(path: Path) -> Telemetry:
    """The telemetry in a file; empty without one. The last line about a step, a rank or a part counts."""
    try:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return Telemetry()
    told = [entry for line in lines if line.strip() for entry in (_entry(line),)]
    heard = [entry for entry in told if entry is not None]
    steps = {each.number: each for each in heard if isinstance(each, ReportedStep)}
    memory = {each.rank: each for each in heard if isinstance(each, RankMemory)}
    backends = {each.part: each for each in heard if isinstance(each, Backend)}
    places = {each.local_rank: each for each in heard if isinstance(each, Place)}
    return Telemetry(
        steps=tuple(steps[number] for number in sorted(steps)),
        memory=tuple(memory[rank] for rank in sorted(memory)),
        backends=tuple(backends.values()),
        places=tuple(places[rank] for rank in sorted(places)),
        lost=len(told) - len(heard),
    )


def _entry(line: str) -> Any:
    try:
        data = json.loads(line, parse_constant=str)  # Python's writers put a bare NaN; its text is a Figure
        ((kind, body),) = data.items()
        return codec.decode(KINDS[kind], body)
    except (Refused, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
