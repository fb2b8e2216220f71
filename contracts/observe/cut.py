"""Rows that one run has whole and another in parts, as context parallelism cuts them, or padded to another length.

Each half of a row has a number, a polynomial of its ids. That of a row is the sum of its parts', each times the base to
the power of where it begins: parts are known by what they make together, and not by how a script says it cuts.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.observe.merged import Merged
from contracts.observe.trace import Line

PRIME, BASES = 2**31 - 1, (48271, 1103515245)
_IDS = (torch.int64, torch.int32)
MOST_ROWS = 4096
BESIDE = frozenset({"attention_mask", "position_ids", "cache_position"})
"""Arguments of models of transformers that say where a row's ids lie, and are no contents of it."""
_Part = tuple[int, tuple[int, ...]]
"""A part of a row: how many ids it has, and its number to each base."""
_Row = tuple[_Part, _Part]


@functools.lru_cache(maxsize=16)
def powers(length: int, place: torch.device) -> Tensor:
    """[half and base, length]: the powers of each base over each half of a row, and 0 over the other."""
    first, found = length // 2, torch.zeros(2, len(BASES), length, dtype=torch.int64)
    for number, base in enumerate(BASES):
        powers = [1]
        while len(powers) < length - first:
            powers.append(powers[-1] * base % PRIME)
        found[0, number, :first], found[1, number, first:] = torch.tensor(powers[:first]), torch.tensor(powers)
    return found.flatten(0, 1).to(place)


def halves(tensors: Mapping[str, Tensor]) -> tuple[Tensor | None, int]:
    """The numbers of the two halves of each row of ids, [rows, half], and how long a row is, if a tensor has rows."""
    whole = {name: each for name, each in tensors.items() if each.dim() == 2 and not each.is_floating_point()}
    ids = next((each for name, each in sorted(whole.items(), key=lambda pair: not pair[0].endswith("input_ids"))), None)
    if ids is None or ids.dtype not in _IDS or ids.shape[1] < 2:
        return None, 0
    values = (ids.detach().to(torch.int64) + 1) % PRIME
    sums = ((values[:, None] * powers(ids.shape[1], ids.device) % PRIME).sum(-1) % PRIME).view(-1, 2, len(BASES))
    return sums[..., 0] | sums[..., 1] << 31, ids.shape[1]


@dataclass(frozen=True, kw_only=True)
class Plain:
    """One or two tensors of ids: the one first by which rows are known, if it is `named` so, and whose halves count."""

    ids: tuple[Tensor, ...]
    named: bool
    tokens: tuple[int, ...]


def plain(tensors: Mapping[str, Tensor]) -> Plain | None:
    """The inputs of a root, if these are one or two tensors of as many rows of ids each and nothing else."""
    if not 1 <= len(tensors) <= 2:
        return None
    first = tensors[min(tensors)]
    for name, each in tensors.items():
        if (
            type(each) is not Tensor or each.dim() != 2 or each.dtype not in _IDS or each.shape[1] < 2
            or each.stride(1) != 1 or each.shape[0] != first.shape[0] or each.device != first.device
            or not 0 < each.shape[0] <= MOST_ROWS or name.rpartition(".")[2] in BESIDE
        ):  # fmt: skip
            return None
    held = dict(sorted(tensors.items(), key=lambda pair: not pair[0].endswith("input_ids")))
    return Plain(ids=tuple(held.values()), named=next(iter(held)).endswith("input_ids"), tokens=tuple(first.shape))


def _rows(line: Line) -> Iterator[_Row]:
    length, numbers = line.get("length", 0), line.get("halves", ())
    sizes = length // 2, length - length // 2
    for pair in zip(numbers[::2], numbers[1::2], strict=False):
        one, other = ((size, (each & PRIME, each >> 31)) for size, each in zip(sizes, pair, strict=True))
        yield one, other


def _together(parts: Sequence[_Part]) -> _Part:
    """What parts make in their order."""
    at, numbers = 0, (0,) * len(BASES)
    for length, held in parts:
        numbers = tuple((so_far + number * pow(base, at, PRIME)) % PRIME
                        for so_far, number, base in zip(numbers, held, BASES, strict=True))  # fmt: skip
        at += length
    return at, numbers


def _in_turn(held: Sequence[_Row]) -> list[_Part]:
    """Each rank has what follows the part of the rank before."""
    return [half for row in held for half in row]


def _from_both_ends(held: Sequence[_Row]) -> list[_Part]:
    """Each rank has a part from either end, so that a causal mask leaves all the same work."""
    return [*(first for first, _ in held), *(last for _, last in reversed(held))]


def _whole(merged: Merged, step: int) -> Counter[_Part]:
    return Counter(_together(row) for _, line in merged.inputs(step) for row in _rows(line))


def padded(one: Merged, other: Merged, step: int) -> bool:
    """Whether the rows of a step equal the other run's, except for how often one id stands at their end."""
    mine, its = (_whole(each, step) for each in (one, other))
    first, longest = next(iter(mine - its), None), max((length for length, _ in mine | its), default=0)
    if first is None:
        return False
    fillers = {_filler(*sorted((first, each))) for each in its if each[0] != first[0]} - {0}
    return any(_filled(mine, longest, each) == _filled(its, longest, each) for each in fillers)


def _sums(start: int, end: int) -> list[int]:
    """The powers of each base from one to the other, added up."""
    return [(pow(base, end, PRIME) - pow(base, start, PRIME)) * pow(base - 1, -1, PRIME) % PRIME for base in BASES]


def _filler(short: _Part, long: _Part) -> int:
    """The id that fills the longer row after the shorter one: its number, or 0 if there is none."""
    pairs = zip(long[1], short[1], _sums(short[0], long[0]), strict=True)
    found = {(its - own) * pow(powers, -1, PRIME) % PRIME for its, own, powers in pairs}
    return found.pop() if len(found) == 1 else 0


def _filled(rows: Counter[_Part], longest: int, filler: int) -> Counter[tuple[int, ...]]:
    """All rows as long as the longest."""
    found = Counter[tuple[int, ...]]()
    for (length, numbers), count in rows.items():
        pairs = zip(numbers, _sums(length, longest), strict=True)
        found[tuple((number + filler * powers) % PRIME for number, powers in pairs)] += count
    return found


def cut(whole: Merged, parts: Merged, step: int) -> bool:
    """Whether each row of a step is what several ranks of the other run consume together."""
    want = _whole(whole, step)
    of: dict[int, dict[int, list[_Row]]] = {}
    for rank, line in parts.lines("input", step):
        of.setdefault(line["microbatch"], {})[rank.rank] = list(_rows(line))
    of_one = {sum(size for size, _ in row) for ranks in of.values() for rows in ranks.values() for row in rows}
    counts = {size // its for size, _ in want for its in of_one if its and not size % its}
    count = counts.pop() if len(counts) == 1 else 1
    return count > 1 and any(
        want == Counter(row for ranks in of.values() for row in _joined(ranks, count, stride, order))
        for stride in range(1, parts.trace.world // count + 1) for order in (_in_turn, _from_both_ends)
    )  # fmt: skip


def _joined(
    ranks: Mapping[int, Sequence[_Row]], count: int, stride: int, order: Callable[[Sequence[_Row]], list[_Part]]
) -> Iterator[_Part]:
    """The rows of a microbatch that groups of ranks hold, each rank so many after the one before. Groups of the same
    rows count once."""
    seen = set()
    for first in (each for each in ranks if not each // stride % count):
        group = [ranks.get(first + stride * at, ()) for at in range(count)]
        rows = tuple(_together(order(held)) for held in zip(*group, strict=False))
        if rows not in seen:
            yield from rows
        seen.add(rows)
