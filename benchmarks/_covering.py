"""Covering arrays: few rows in which every two levels of two axes meet."""

import itertools
from collections.abc import Mapping, Sequence

Row = tuple[str, ...]
"""A level of each axis, in the order of the axes."""
Axes = Mapping[str, Sequence[str]]
Meeting = frozenset[tuple[str, str]]
"""Levels of different axes, each as (axis, level), that one row brings together."""

SEEDS = 40  # meetings that are tried as the beginning of the next row; more make no array shorter, and take time


def meetings(axes: Axes, strength: int = 2) -> list[Meeting]:
    """What a covering array has to bring together, in the order of the axes."""
    return [
        frozenset(zip(names, levels, strict=True))
        for names in itertools.combinations(axes, strength)
        for levels in itertools.product(*(axes[name] for name in names))
    ]


def meetings_of(row: Row, axes: Axes, strength: int = 2) -> list[Meeting]:
    """What one row brings together."""
    return [frozenset(each) for each in itertools.combinations(zip(axes, row, strict=True), strength)]


def covering(axes: Axes, first: Sequence[Row] = (), strength: int = 2) -> list[Row]:
    """Rows that bring every meeting about, those that bring the most first; they begin with `first`.

    Greedy: each row is the best of those that begin with a meeting still left. Where nothing is to be gained an axis
    takes its first level. `strength` axes meet: 1 shows every level once, 2 every pair of levels.
    """
    left = dict.fromkeys(meetings(axes, strength))
    rows: list[Row] = []

    def take(row: Row) -> None:
        rows.append(row)
        for each in meetings_of(row, axes, strength):
            left.pop(each, None)

    for row in first:
        take(row)
    while left:
        seeds = itertools.islice(left, SEEDS)
        take(max((_completed(seed, axes, left, strength) for seed in seeds), key=lambda row: _gain(row, axes, left)))
    return rows


def _gain(row: Row, axes: Axes, left: Mapping[Meeting, None]) -> int:
    return sum(each in left for each in meetings_of(row, axes, len(next(iter(left)))))


def _completed(seed: Meeting, axes: Axes, left: Mapping[Meeting, None], strength: int) -> Row:
    row = dict(seed)
    for axis in axes:
        if axis in row:
            continue
        others = list(itertools.combinations(row.items(), strength - 1))
        gains = {level: sum(frozenset({*each, (axis, level)}) in left for each in others) for level in axes[axis]}
        row[axis] = max(gains, key=gains.__getitem__)  # of equals the first
    return tuple(row[axis] for axis in axes)
