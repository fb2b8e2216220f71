"""Corpora of several datasets: the documents of a split, and the dataset of each row of a blend."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, count
from typing import get_args

from contracts.spec.blending import Blend, Split
from contracts.spec.errors import refuse
from contracts.stacks.reference.data import DataOrder

SPLITS: tuple[Split, ...] = get_args(Split)


def shares(split: str) -> list[Fraction]:
    """The weights of training, validation and test divided by their sum.

    Raises:
        Refused: for what is not one to three numbers of at least 0, one of them above.
    """
    try:
        read = [Fraction(Decimal(each.strip())) for each in split.split(",")]
    except (ArithmeticError, ValueError):  # of words, of NaN and of infinity
        read = []
    if not 1 <= len(read) <= len(SPLITS) or min(read) < 0 or not sum(read):
        raise refuse("split", split, "must have one to three weights of at least 0", "write them as 969,30,1")
    return [each / sum(read) for each in read] + [Fraction()] * (len(SPLITS) - len(read))


def documents(held: int, split: str, part: Split) -> range:
    """The documents of a split: a run of them, which begins where the split before ends."""
    borders, at = [round(held * each) for each in accumulate(shares(split), initial=Fraction())], SPLITS.index(part)
    return range(borders[at], borders[at + 1])


def tokens_of(lengths: Sequence[int], first: int, chosen: Sequence[int]) -> list[int]:
    """The tokens of some documents of a dataset whose first token is `first`."""
    ends = [*accumulate(lengths, initial=first)]
    return [token for at in chosen for token in range(ends[at], ends[at + 1])]


def sources(weights: Sequence[Fraction], rows: int) -> list[int]:
    """The dataset of each row: of those that have less than their weight allows, the one whose next row is due first.

    No count is ever a whole row away from its weight (Tijdeman, The chairman assignment problem, 1980).
    """
    taken, found = [0] * len(weights), []
    for row in range(rows):
        allowed = [at for at, weight in enumerate(weights) if taken[at] < weight * (row + 1)]
        found.append(min(allowed, key=lambda at: (taken[at] + 1) / weights[at]))
        taken[found[-1]] += 1
    return found


def order(blend: Blend, part: Split) -> list[tuple[int, ...]]:
    """The rows of a run, in order.

    Raises:
        Refused: for a split, or a dataset of it, that has a weight and no row.
    """
    firsts = accumulate(map(sum, blend.documents), initial=1)
    held = [
        tokens_of(each, first, documents(len(each), blend.split, part))
        for each, first in zip(blend.documents, firsts, strict=False)
    ]
    sizes, at = [max(0, len(tokens) - 1) // blend.length for tokens in held], SPLITS.index(part)
    if not any(held) and not shares(blend.split)[at]:
        return []
    weights = [Fraction(each) for each in blend.weights or sizes]
    if not sum(weights) or any(weight and not size for weight, size in zip(weights, sizes, strict=True)):
        raise refuse("split", blend.split, f"leaves a dataset of {part} without a row", "give it more documents")
    run = sources([each / sum(weights) for each in weights], blend.rows[at] if blend.rows else sum(sizes))
    streams = [_epochs(tokens, size, blend) for tokens, size in zip(held, sizes, strict=True)]
    return [next(streams[dataset]) for dataset in run]


def _epochs(tokens: list[int], rows: int, blend: Blend) -> Iterator[tuple[int, ...]]:
    """The rows of a dataset, epoch after epoch."""
    for position in count():
        start = DataOrder(rows, blend.seed).id(position) * blend.length
        yield tuple(tokens[start : start + blend.length])


def rows_of(blend: Blend, part: Split, batch: int, rank: int, dp: int, consumed: int) -> tuple[tuple[int, ...], ...]:
    """The rows that a rank reads: its run of each whole step."""
    rows, share = order(blend, part), batch // dp
    starts = range(consumed + rank * share, len(rows) - batch + rank * share + 1, batch)
    return tuple(row for start in starts for row in rows[start : start + share])
