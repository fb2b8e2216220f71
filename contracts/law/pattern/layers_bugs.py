"""Stacks that read a pattern with one fault: tiling, alphabet, cuts, A-ranks, bases."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import LayerNumbers, refuse
from contracts.stacks.reference.stack import Reference


@broken(Reference, "blocks", "PAT-01[nam56r]: has 48 blocks", bugs=("HYB-07",))
def builds_whole_periods(blocks, self, pattern, depth):
    """Tiles depth // length periods: at depth 52 the last four layers of a 12-letter pattern are gone."""
    return blocks(self, pattern, max(depth // len(pattern), 1) * len(pattern))


@broken(
    Reference, "blocks", "PAT-01[quarter-ends-in-A]: layer 13 (1-based) is rblock, expected ablock", bugs=("HYB-07",)
)
def repeats_the_last_letter(former, self, pattern, depth):
    """Over-correction: fills the remaining layers with the pattern's last block instead of starting it again."""
    whole = depth // len(pattern) * len(pattern)
    blocks = former(self, pattern, depth)
    return blocks[:whole] + (former(self, pattern[-1], depth - whole) if depth > whole else ())


@broken(Reference, "blocks", "PAT-01[less-than-a-period]: a legal input was refused")
def demands_whole_periods(blocks, self, pattern, depth):
    """Over-correction: refuses every depth that is no multiple of the pattern's length, 52 layers of 12 included."""
    if depth % len(pattern):
        raise refuse("depth", depth, f"must be a multiple of {len(pattern)}", "pad the pattern")
    return blocks(self, pattern, depth)


@broken(Reference, "blocks", "PAT-01a[nam56r]: has 21 eblocks, expected 22", bugs=("HYB-07",))
def ends_on_the_tail_of_the_period(blocks, self, pattern, depth):
    """The tail takes the last letters of the period instead of its first: the depth is right, the counts are wrong."""
    whole, left = divmod(depth, len(pattern))
    tail = pattern[len(pattern) - left :]
    return blocks(self, pattern * whole + tail, depth)


@broken(Reference, "blocks", "PAT-02[unknown-letter]: expected a refusal", bugs=("ARG-27",))
def validates_by_assert(blocks, self, pattern, depth):
    """The alphabet is checked by `assert`, which `python -O` removes; an unknown letter becomes a Mamba block."""
    return blocks(self, "".join(letter if letter in "AEMR|" else "M" for letter in pattern), depth)


@broken(Reference, "blocks", "PAT-02[blank]: expected a refusal")
def strips_blanks(blocks, self, pattern, depth):
    """Blanks are removed before validation, so every layer after a typing error moves."""
    return blocks(self, "".join(pattern.split()), depth)


@broken(Reference, "blocks", "PAT-02[lower-case]: expected a refusal")
def folds_case(blocks, self, pattern, depth):
    """Lower case is read as upper case, though nobody declared it and some launchers distinguish `m` from `M`."""
    return blocks(self, pattern.upper(), depth)


@broken(Reference, "blocks", "PAT-02[launcher-symbol]: does not name column 2")
def says_only_that_it_is_wrong(blocks, self, pattern, depth):
    """The refusal names no column, so somebody counts 52 letters by hand, and starts at 0."""
    if set(pattern) - set("AEMR|"):
        raise refuse("pattern", pattern, "is not a pattern", "mend it")
    return blocks(self, pattern, depth)


@broken(Reference, "blocks", "PAT-02a[exact]: has 11 blocks", bugs=("HYB-04",))
def builds_a_block_for_the_cut(blocks, self, pattern, depth):
    """`|` is removed only for the length check and stays in the list from which the model is built."""
    built = blocks(self, pattern, depth)
    for column, letter in enumerate(pattern):
        if letter == "|":
            built = (*built[:column], "", *built[column:])
    return built


@broken(Reference, "blocks", "PAT-02a[would-be-truncated]: expected a refusal", bugs=("HYB-02",))
def truncates_to_the_depth(blocks, self, pattern, depth):
    """`layers[:depth]`: a pattern written out for another depth is silently cut off."""
    letters = pattern.replace("|", "")
    return blocks(self, letters if len(letters) > depth else pattern, depth)


@broken(Reference, "blocks", "PAT-02a[would-tile-with-a-tail]: expected a refusal")
def tiles_a_cut(blocks, self, pattern, depth):
    """The cuts are dropped and the letters tiled: the requested stages exist nowhere."""
    letters = pattern.replace("|", "")
    return blocks(self, letters if len(letters) < depth else pattern, depth)


@broken(Reference, "blocks", "PAT-03[R-alone]: names ('mblock'", bugs=("HYB-08",))
def reads_r_through_the_launcher(blocks, self, pattern, depth):
    """The model is built from the translated pattern, in which R is an M: no recurrence anywhere."""
    return tuple("mblock" if block == "rblock" else block for block in blocks(self, pattern, depth))


@broken(
    Reference, "placement", "PAT-07[nam52-9full-4sparse]: stands at layers (8, 9, 10, 11) (1-based)", bugs=("HYB-09",)
)
def takes_ranks_for_layers(placement, self, pattern, depth, sparse_ranks):
    """`8,9,10,11` is read as layer numbers: sparse attention lands on expert and Mamba layers."""
    right = placement(self, pattern, depth, sparse_ranks)
    return replace(right, sparse_layers=LayerNumbers(base=1, numbers=right.sparse_ranks))


@broken(
    Reference, "placement", "PAT-07[nam52r-4full-9sparse]: sparse and full A-ranks are ((0, 4, 8, 12)", bugs=("HYB-09",)
)
def swaps_sparse_and_full(placement, self, pattern, depth, sparse_ranks):
    """The list of sparse A-ranks is read as the full ones: 4 full and 9 sparse becomes 9 full and 4 sparse."""
    return placement(self, pattern, depth, placement(self, pattern, depth, sparse_ranks).full_ranks)


@broken(Reference, "placement", "PAT-07[uneven-strides]: sparse attention stands at layers")
def assumes_an_even_stride(placement, self, pattern, depth, sparse_ranks):
    """A-rank k is placed at layer 4k + 1, which is right for AEME only."""
    right = placement(self, pattern, depth, sparse_ranks)
    return replace(right, sparse_layers=LayerNumbers(base=1, numbers=tuple(4 * k + 1 for k in right.sparse_ranks)))


@broken(Reference, "placement", "PAT-07a[a-layer-number]: expected a refusal", bugs=("HYB-09",))
def skips_ranks_it_does_not_have(placement, self, pattern, depth, sparse_ranks):
    """Unknown A-ranks are skipped: a list of layer numbers gives a dense model under a sparse name."""
    attention = self.blocks(pattern, depth).count("ablock")
    return placement(self, pattern, depth, tuple(rank for rank in sparse_ranks if rank < attention))


@broken(Reference, "translate", "PAT-09[last-layer]: is a layer of A, not of R")
def says_one_and_counts_from_zero(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """Positions are emitted as layer numbers: `enumerate` without `start=1`, under a base of 1."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    positions = tuple(number - 1 for number in right.recurrent.numbers)
    return replace(right, recurrent=LayerNumbers(base=1, numbers=positions))


@broken(Reference, "placement", "PAT-09[nam52r]: is a layer of E, not of A")
def adds_one_twice(placement, self, pattern, depth, sparse_ranks):
    """Over-correction: adds 1 to numbers that already count from 1, so every index names the next layer."""
    right = placement(self, pattern, depth, sparse_ranks)
    return replace(right, full_layers=LayerNumbers(base=1, numbers=tuple(n + 1 for n in right.full_layers.numbers)))


@broken(Reference, "render", "PAT-11[drawn-56]: renders as")
def renders_without_cuts(render, self, pattern, depth):
    """The renderer writes only letters, and the written-out stages are lost."""
    return render(self, pattern, depth).replace("|", "")


@broken(Reference, "render", "PAT-11[drawn-11]: renders as")
def renders_one_period(render, self, pattern, depth):
    """The renderer returns the pattern as it was given, which is right only when its length is the depth."""
    render(self, pattern, depth)
    return pattern


@broken(Reference, "render", "PAT-11a[drawn-11]: expected a refusal")
def renders_without_reading(render, self, pattern, depth):
    """`blocks` validates and `render` does not: an illegal pattern reaches the launch text."""
    return (pattern * max(depth, 1))[: max(depth, 0)]
