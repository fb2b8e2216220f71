"""The pattern: a string that says which block each layer has.

`A` attention, `E` experts, `M` Mamba, `R` the M²RNN recurrence. A pattern is tiled over the depth: layer i (0-based)
is `pattern[i mod len(pattern)]`, and the depth need not be a multiple of the length. `|` cuts pipeline stages. It is
legal only when the number of letters equals the depth, because a tiled cut would mean something else in each period.

Columns and layer numbers in messages are 1-based; positions inside the code are 0-based. `LayerNumbers` carries its
base, so the two never mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from contracts.spec.errors import Refusals, refuse

BLOCKS = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
"""Letter → block family. Add a new letter here and in `stacks/reference/model/blocks/`."""

CUT = "|"
MTP_SEPARATOR = "/"
MOST_FAULTS = 100  # of one text; a file that is no pattern has one a character
MAX_DEPTH = 100_000  # far above any model; keeps a mistyped depth from filling the memory


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern tiled over its depth: one letter a layer, and the cuts between pipeline stages.

    `cuts` holds 0-based positions: a cut at 13 is before layer 13.
    """

    letters: str
    cuts: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.letters)


@dataclass(frozen=True, kw_only=True)
class LayerNumbers:
    """Layer indices with their base: `base` 0 for positions, 1 for layer numbers."""

    base: Literal[0, 1]
    numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A pattern in the launcher's hybrid syntax, and what that syntax cannot express.

    `main` is the main pattern, `mtp` has one head pattern for each depth of multi-token prediction, and `recurrent` has
    the layer numbers at which `M` stands for an `R` block.
    """

    main: str
    mtp: tuple[str, ...]
    recurrent: LayerNumbers

    @property
    def text(self) -> str:
        """The text for the launcher: the main pattern, then each head pattern after a `/`."""
        return MTP_SEPARATOR.join((self.main, *self.mtp))


@dataclass(frozen=True, kw_only=True)
class HybridPattern:
    """What a launcher read out of a hybrid pattern: its own block names in order, and the depth of MTP."""

    main: tuple[str, ...]
    mtp: tuple[str, ...] = ()
    mtp_depth: int = 0


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which attention layers are sparse (DSA) and which are full, by A-rank and by layer number.

    An A-rank is the ordinal among attention layers, from 0; it is not a layer number.
    """

    full_ranks: tuple[int, ...]
    sparse_ranks: tuple[int, ...]
    full_layers: LayerNumbers
    sparse_layers: LayerNumbers


def parse(text: str, depth: int, *, lower_case: bool = False) -> Pattern:
    """Tile a pattern over `depth` layers.

    Args:
        text: letters of `BLOCKS`, optionally cut by `|`.
        depth: number of layers, 1 … `MAX_DEPTH`.
        lower_case: accept lower-case letters as the same blocks. This is opt-in, because `m` and `M` name different
            blocks in some launchers.

    Raises:
        Refused: every illegal character with its 1-based column (of `MOST_FAULTS`, and how many more there are), an
            illegal depth, or a cut that cannot be tiled.
    """
    found = Refusals()
    found.unless(1 <= depth <= MAX_DEPTH, "depth", depth, f"must lie in 1 … {MAX_DEPTH}", "give the number of layers")
    found.unless(bool(text), "pattern", text, "is empty", "name at least one block")
    known = "use A, E, M, R or |"
    read = text.upper() if lower_case else text
    faults = []
    for column, letter in enumerate(read, start=1):
        if letter == CUT or letter in BLOCKS:
            continue
        remedy = f"{known}, or declare lower case" if letter.upper() in BLOCKS else known
        faults.append((f"unknown letter {letter!r} at column {column}", remedy))
    segments = read.split(CUT)
    letters = "".join(segments)
    ends = list(accumulate(map(len, segments)))
    for index, segment in enumerate(segments):
        if text and not segment:
            faults.append((f"empty stage at column {ends[index] + index + 1}", "put at least one block between cuts"))
    for problem, remedy in faults[:MOST_FAULTS]:
        found.add("pattern", text, problem, remedy)
    found.unless(len(faults) <= MOST_FAULTS, "pattern", text, f"{len(faults) - MOST_FAULTS} faults more", known)
    if len(segments) > 1 and len(letters) != depth:
        problem = f"cut at column {len(segments[0]) + 1}, but {len(letters)} letters are not the depth ({depth})"
        found.add("pattern", text, problem, "write every layer out, or drop the cuts")
    found.raise_any()
    return Pattern(letters=(letters * -(-depth // len(letters)))[:depth], cuts=tuple(ends[:-1]))


def render(pattern: Pattern) -> str:
    """The pattern written out, one letter a layer, with its cuts. `parse(render(p), p.depth) == p`."""
    return CUT.join(_segments(pattern))


def blocks(pattern: Pattern) -> tuple[str, ...]:
    """The block family of each layer, in order."""
    return tuple(BLOCKS[letter] for letter in pattern.letters)


def layers_of(pattern: Pattern, letter: str) -> LayerNumbers:
    """The 1-based layer numbers of a letter."""
    return LayerNumbers(base=1, numbers=tuple(i for i, each in enumerate(pattern.letters, start=1) if each == letter))


def translate(pattern: Pattern, *, moe: bool = True, dsa: bool = False, mtp_depth: int = 0) -> Translation:
    """Write a pattern in the hybrid syntax of Megatron-Core, letter for letter.

    `A` → `*` (or `D` for all of them: Megatron refuses a mix), `E` → `E` with experts and `-` without, `M` → `M`,
    `R` → `M`, with its layer number in `Translation.recurrent`. The head pattern of multi-token prediction is always
    dense attention and a dense MLP.
    """
    if mtp_depth < 0:
        raise refuse("mtp_depth", mtp_depth, "must not be negative", "give 0 to switch it off")
    symbols = {"A": "D" if dsa else "*", "E": "E" if moe else "-", "M": "M", "R": "M", CUT: CUT}
    return Translation(
        main="".join(symbols[letter] for letter in render(pattern)),
        mtp=("*-",) * mtp_depth,
        recurrent=layers_of(pattern, "R"),
    )


def stages(pattern: Pattern, pp: int) -> tuple[str, ...]:
    """The letters of each pipeline stage, in model order.

    A pattern without cuts is cut evenly; a pattern with cuts keeps them. If there are more segments than stages, the
    segments are virtual stages: their number must be a multiple of `pp`, and they are returned unchanged.

    Raises:
        Refused: when the depth, or the number of segments, is not a multiple of `pp`.
    """
    if pp < 1:
        raise refuse("pp", pp, "must be at least 1", "give the number of pipeline stages")
    segments = _segments(pattern)
    if len(segments) > 1:
        if len(segments) % pp:
            raise refuse("pp", pp, f"must divide the number of stages written out ({len(segments)})", "add a cut")
        return segments
    if pattern.depth % pp:
        legal = ", ".join(str(n) for n in range(1, pattern.depth + 1) if pattern.depth % n == 0)
        raise refuse("pp", pp, f"must divide depth ({pattern.depth})", f"use one of {legal}, or write stages with |")
    size = pattern.depth // pp
    return tuple(pattern.letters[start : start + size] for start in range(0, pattern.depth, size))


def placement(pattern: Pattern, sparse_ranks: tuple[int, ...]) -> Placement:
    """Place sparse attention on chosen A-ranks.

    Raises:
        Refused: for a rank that is repeated or that the pattern does not have.
    """
    attention = layers_of(pattern, "A").numbers
    found = Refusals()
    for rank in sparse_ranks:
        problem = f"is not an A-rank of this pattern (it has {len(attention)}, counted from 0)"
        remedy = "give ordinals among attention layers, not layer numbers"
        found.unless(0 <= rank < len(attention), "sparse_ranks", rank, problem, remedy)
    found.unless(len(set(sparse_ranks)) == len(sparse_ranks), "sparse_ranks", sparse_ranks, "repeats a rank", "drop it")
    found.raise_any()
    sparse = tuple(sorted(sparse_ranks))
    full = tuple(rank for rank in range(len(attention)) if rank not in sparse)
    return Placement(
        full_ranks=full,
        sparse_ranks=sparse,
        full_layers=LayerNumbers(base=1, numbers=tuple(attention[rank] for rank in full)),
        sparse_layers=LayerNumbers(base=1, numbers=tuple(attention[rank] for rank in sparse)),
    )


def _segments(pattern: Pattern) -> tuple[str, ...]:
    edges = (0, *pattern.cuts, pattern.depth)
    return tuple(pattern.letters[start:end] for start, end in pairwise(edges))
