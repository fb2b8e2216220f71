"""Stacks that read a pattern with one fault: tiling, alphabet, cuts, A-ranks, bases."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import refuse
from contracts.spec.pattern import LayerNumbers, Placement, Translation
from contracts.stacks.reference.stack import Reference

NAM52R_SPARSE = "nam52r-4full-9sparse"


@mutant(of="PAT-01", case="nam56r", says="has 48 blocks", bugs=("HYB-07",))
class BuildsWholePeriods(Reference):
    """Tiles depth // length periods: at depth 52 the last four layers of a 12-letter pattern are gone."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return super().blocks(pattern, max(depth // len(pattern), 1) * len(pattern))


@mutant(of="PAT-01", case="quarter-ends-in-A", says="layer 13 (1-based) is rblock, expected ablock", bugs=("HYB-07",))
class RepeatsTheLastLetter(Reference):
    """Over-correction: fills the remaining layers with the pattern's last block instead of starting it again."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        whole = depth // len(pattern) * len(pattern)
        blocks = super().blocks(pattern, depth)
        return blocks[:whole] + (super().blocks(pattern[-1], depth - whole) if depth > whole else ())


@mutant(of="PAT-01", case="less-than-a-period", says="a legal input was refused")
class DemandsWholePeriods(Reference):
    """Over-correction: refuses every depth that is no multiple of the pattern's length, 52 layers of 12 included."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        if depth % len(pattern):
            raise refuse("depth", depth, f"must be a multiple of {len(pattern)}", "pad the pattern")
        return super().blocks(pattern, depth)


@mutant(of="PAT-01a", case="nam56r", says="has 21 eblocks, expected 22", bugs=("HYB-07",))
class EndsOnTheTailOfThePeriod(Reference):
    """The tail takes the last letters of the period instead of its first: the depth is right, the counts are wrong."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        whole, left = divmod(depth, len(pattern))
        tail = pattern[len(pattern) - left :]
        return super().blocks(pattern * whole + tail, depth)


@mutant(of="PAT-02", case="unknown-letter", says="expected a refusal", bugs=("ARG-27",))
class ValidatesByAssert(Reference):
    """The alphabet is checked by `assert`, which `python -O` removes; an unknown letter becomes a Mamba block."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return super().blocks("".join(letter if letter in "AEMR|" else "M" for letter in pattern), depth)


@mutant(of="PAT-02", case="blank", says="expected a refusal")
class StripsBlanks(Reference):
    """Blanks are removed before validation, so every layer after a typing error moves."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return super().blocks("".join(pattern.split()), depth)


@mutant(of="PAT-02", case="lower-case", says="expected a refusal")
class FoldsCase(Reference):
    """Lower case is read as upper case, though nobody declared it and some launchers distinguish `m` from `M`."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return super().blocks(pattern.upper(), depth)


@mutant(of="PAT-02", case="launcher-symbol", says="does not name column 2")
class SaysOnlyThatItIsWrong(Reference):
    """The refusal names no column, so somebody counts 52 letters by hand, and starts at 0."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        if set(pattern) - set("AEMR|"):
            raise refuse("pattern", pattern, "is not a pattern", "mend it")
        return super().blocks(pattern, depth)


@mutant(of="PAT-02a", case="exact", says="has 11 blocks", bugs=("HYB-04",))
class BuildsABlockForTheCut(Reference):
    """`|` is removed only for the length check and stays in the list from which the model is built."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        built = super().blocks(pattern, depth)
        for column, letter in enumerate(pattern):
            if letter == "|":
                built = (*built[:column], "", *built[column:])
        return built


@mutant(of="PAT-02a", case="would-be-truncated", says="expected a refusal", bugs=("HYB-02",))
class TruncatesToTheDepth(Reference):
    """`layers[:depth]`: a pattern written out for another depth is silently cut off."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        letters = pattern.replace("|", "")
        return super().blocks(letters if len(letters) > depth else pattern, depth)


@mutant(of="PAT-02a", case="would-tile-with-a-tail", says="expected a refusal")
class TilesACut(Reference):
    """The cuts are dropped and the letters tiled: the requested stages exist nowhere."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        letters = pattern.replace("|", "")
        return super().blocks(letters if len(letters) < depth else pattern, depth)


@mutant(of="PAT-03", case="R-alone", says="names ('mblock'", bugs=("HYB-08",))
class ReadsRThroughTheLauncher(Reference):
    """The model is built from the translated pattern, in which R is an M: no recurrence anywhere."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return tuple("mblock" if block == "rblock" else block for block in super().blocks(pattern, depth))


@mutant(of="PAT-07", case="nam52-9full-4sparse", says="stands at layers (8, 9, 10, 11) (1-based)", bugs=("HYB-09",))
class TakesRanksForLayers(Reference):
    """`8,9,10,11` is read as layer numbers: sparse attention lands on expert and Mamba layers."""

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        right = super().placement(pattern, depth, sparse_ranks)
        return replace(right, sparse_layers=LayerNumbers(base=1, numbers=right.sparse_ranks))


@mutant(of="PAT-07", case=NAM52R_SPARSE, says="sparse and full A-ranks are ((0, 4, 8, 12)", bugs=("HYB-09",))
class SwapsSparseAndFull(Reference):
    """The list of sparse A-ranks is read as the full ones: 4 full and 9 sparse becomes 9 full and 4 sparse."""

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        return super().placement(pattern, depth, super().placement(pattern, depth, sparse_ranks).full_ranks)


@mutant(of="PAT-07", case="uneven-strides", says="sparse attention stands at layers")
class AssumesAnEvenStride(Reference):
    """A-rank k is placed at layer 4k + 1, which is right for AEME only."""

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        right = super().placement(pattern, depth, sparse_ranks)
        return replace(right, sparse_layers=LayerNumbers(base=1, numbers=tuple(4 * k + 1 for k in right.sparse_ranks)))


@mutant(of="PAT-07a", case="a-layer-number", says="expected a refusal", bugs=("HYB-09",))
class SkipsRanksItDoesNotHave(Reference):
    """Unknown A-ranks are skipped: a list of layer numbers gives a dense model under a sparse name."""

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        attention = self.blocks(pattern, depth).count("ablock")
        return super().placement(pattern, depth, tuple(rank for rank in sparse_ranks if rank < attention))


@mutant(of="PAT-09", case="last-layer", says="is a layer of A, not of R")
class SaysOneAndCountsFromZero(Reference):
    """Positions are emitted as layer numbers: `enumerate` without `start=1`, under a base of 1."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        positions = tuple(number - 1 for number in right.recurrent.numbers)
        return replace(right, recurrent=LayerNumbers(base=1, numbers=positions))


@mutant(of="PAT-09", case="nam52r", says="is a layer of E, not of A")
class AddsOneTwice(Reference):
    """Over-correction: adds 1 to numbers that already count from 1, so every index names the next layer."""

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        right = super().placement(pattern, depth, sparse_ranks)
        return replace(right, full_layers=LayerNumbers(base=1, numbers=tuple(n + 1 for n in right.full_layers.numbers)))


@mutant(of="PAT-11", case="drawn-56", says="renders as")
class RendersWithoutCuts(Reference):
    """The renderer writes only letters, and the written-out stages are lost."""

    def render(self, pattern: str, depth: int) -> str:
        return super().render(pattern, depth).replace("|", "")


@mutant(of="PAT-11", case="drawn-11", says="renders as")
class RendersOnePeriod(Reference):
    """The renderer returns the pattern as it was given, which is right only when its length is the depth."""

    def render(self, pattern: str, depth: int) -> str:
        super().render(pattern, depth)
        return pattern


@mutant(of="PAT-11a", case="drawn-11", says="expected a refusal")
class RendersWithoutReading(Reference):
    """`blocks` validates and `render` does not: an illegal pattern reaches the launch text."""

    def render(self, pattern: str, depth: int) -> str:
        return (pattern * max(depth, 1))[: max(depth, 0)]
