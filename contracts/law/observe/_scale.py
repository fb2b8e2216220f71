"""What a script multiplies its gradients by between the last backward pass and the optimizer."""

import math
from collections.abc import Sequence

from contracts.observe.merged import Merged
from contracts.observe.trace import Line

NEAR = 2e-2
"""How far numbers of a gradient may be off the one factor of all, as a part of the greatest: roundings of bfloat16."""


def scale(merged: Merged, step: int, number: int) -> float:
    """The one factor of the gradients of a rank, or of their mean over ranks where they are reduced after the backward
    pass, but for torch's clipping; 1 if none of them was looked at, nan if there is no such factor."""
    lines = {(line["name"], rank.rank): line for rank, line in merged.lines("applied", step)}
    ratios = [
        _ratio([line["before"] for (its, _), line in lines.items() if its == name], lines[name, number])
        for name in (name for name, rank in lines if rank == number)
    ]
    known = [each for each in ratios if each is not None]
    if not known:
        return math.nan if lines else 1.0
    one = math.isclose(min(known), max(known), rel_tol=NEAR) and not any(map(math.isnan, known))
    clipped = math.prod(each.factor for each in merged.clips(step).get(number, ()))
    return known[0] / (clipped or math.nan) if one else math.nan


def _ratio(every: Sequence[Sequence[float]], mine: Line) -> float | None:
    """By what a gradient is the one of before, or the mean of every rank's; None if both are zero."""
    after = [*map(float, mine["gradient"])]
    mean = [math.fsum(map(float, column)) / len(every) for column in zip(*every, strict=False)]
    for before in ([*map(float, mine["before"])], mean):
        if not any(before) and not any(after):
            return None
        squares = math.fsum(each * each for each in before)
        ratio = math.fsum(one * its for one, its in zip(before, after, strict=False)) / squares if squares else math.nan
        if all(abs(its - ratio * one) <= NEAR * max(map(abs, after)) for one, its in zip(before, after, strict=False)):
            return ratio
    return math.nan
