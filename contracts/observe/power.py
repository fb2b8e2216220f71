"""Whether this process can still tell two runs apart: it compares runs with a known bug before it compares anybody's.

As `contracts.harness.power` does for checks. What makes every comparison equal, such as a distance that somebody
replaced or a maximum that swallows nan, would otherwise end `diff` with 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from contracts.observe.diff import compare
from contracts.observe.merged import Merged
from contracts.observe.sketch import BUCKETS
from contracts.observe.trace import Line, RankTrace, Trace

NAN = float("nan")
_RIGHT = {"weight": 1.0, "forward": 2.0, "loss": 3.0, "gradient": 4.0, "rate": 0.1, "updated": 5.0}
"""One step of a run of one parameter of one element, by the value of each thing that is compared."""
BUGS: Mapping[str, tuple[str, float]] = {  # kind → the phase in which it differs, the value with the bug
    "weight": ("initial weights", 1.5), "forward": ("output of module", NAN), "loss": ("loss", NAN),
    "gradient": ("gradient", 8.0), "rate": ("settings of the optimizer", NAN), "updated": ("updated weights", 1.0),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Held(RankTrace):
    """A rank whose sketches are in memory: sketch n is of the n-th value of its step."""

    values_of: tuple[float, ...]

    def sketch(self, number: int) -> Any:
        held = torch.zeros(BUCKETS, dtype=torch.float64, device="cpu")
        held[0] = self.values_of[number]
        return held


def lost() -> str:
    """Why this process cannot be trusted to tell two runs apart, in words; empty where it can."""
    right = _run(_RIGHT)
    same = compare(right, _run(_RIGHT))
    if same.differences or same.incomparable:
        return f"two equal runs are not: {same.differences[:1] or same.incomparable}"
    for kind, (phase, value) in BUGS.items():
        found = compare(right, _run({**_RIGHT, kind: value})).differences
        if not found or found[0].phase != phase:
            return f"the first difference of a run with a known bug in {phase} is {found[0] if found else 'none'}"
    return ""


def _run(values: Mapping[str, float]) -> Merged:
    """A run of one rank, as it would be read from its files."""

    def tensor(kind: str, **more: object) -> Line:
        place = {"name": "layer.w", "part": "", "partial": False, "bits": "", "sketch": [*values].index(kind)}
        return {"e": kind, "step": 1, "shape": [1], "dtype": "float32", "squares": values[kind] ** 2, **place, **more}

    rate = str(values["rate"]) if math.isnan(values["rate"]) else values["rate"]  # as a trace has it
    root = {"e": "root", "number": 0, "type": "Net", "trainable": ["layer.w"], "frozen": [], "replicas": [], "data": []}
    given = {"e": "input", "step": 1, "microbatch": 1, "rows": [7], "random": ""}
    group = {"e": "group", "step": 1, "optimizer": "SGD", "number": 0, "names": ["layer.w"], "lr": rate,
             "decay": 0.0, "told": None}  # fmt: skip
    lines: tuple[Line, ...] = (
        root, tensor("weight"), given, tensor("forward", name="layer", call=1, microbatch=1, batched=False),
        {"e": "loss", "step": 1, "backward": 1, "value": values["loss"]}, tensor("gradient"), group, tensor("updated"),
        {"e": "step", "step": 1, "backward": 1, "microbatches": 1},
    )  # fmt: skip
    end = {"steps": 1, "error": "", "full": False}
    rank = _Held(rank=0, begin={}, lines=lines, end=end, path=Path(), values_of=tuple(values.values()))
    return Merged(Trace(folder=Path(), world=1, ranks=(rank,)))
