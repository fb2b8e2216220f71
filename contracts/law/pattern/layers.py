"""The pattern: which block stands at which layer, and which of its attention layers are sparse.

Layer numbers in the tables are 1-based, as a person counts; A-ranks are ordinals among A layers, from 0.
"""

import random
from itertools import pairwise

from contracts.contract import contract
from contracts.law._support.answers import one_based, refusal_of
from contracts.law._support.layouts import numbers_in
from contracts.spec import Stack, shown

FAMILIES = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
NAM56R = "AEMEAEMEAEMRAEMEAEMEAEMRAEMEAEMEAEMRAEMEAEMEAEMRAEME"  # AEMEAEMEAEMR at 52: four periods and AEME
NAM52 = "AEMEAEMEAEMEAEMEAEMEAEMEAEMEAEMEAEMEAEMEAEMEAEMEAEME"  # AEME at 52: thirteen periods

TILED = {  # pattern, depth → one letter a layer
    "nam56r": ("AEMEAEMEAEMR", 52, NAM56R),
    "nam52": ("AEME", 52, NAM52),
    "quarter-ends-in-A": ("AEMEAEMEAEMR", 13, "AEMEAEMEAEMRA"),
    "one-period": ("AEMEAEMEAEMR", 12, "AEMEAEMEAEMR"),
    "less-than-a-period": ("AEMEAEMEAEMR", 5, "AEMEA"),
    "odd-period": ("RAM", 11, "RAMRAMRAMRA"),
}


@contract("PAT-01", asks="blocks", cases=TILED, source="naming")
def the_pattern_is_tiled_over_the_depth(stack: Stack, pattern: str, depth: int, expected: str) -> None:
    """Layer i is pattern[i mod length], for exactly `depth` layers, whether or not the pattern's length divides the
    depth.

    52 is not a multiple of 12. An expander that counts whole periods builds 48 layers or repeats the last letter, and
    the loss still falls.
    """
    blocks = stack.blocks(pattern, depth)
    assert len(blocks) == depth, f"{pattern} at depth {depth} has {len(blocks)} blocks"
    for layer, (block, letter) in enumerate(zip(blocks, expected, strict=True), start=1):
        assert block == FAMILIES[letter], f"layer {layer} (1-based) is {block}, expected {FAMILIES[letter]} ({letter})"


COUNTED = {  # pattern, depth → blocks of each family, layer numbers of R
    "nam56r": ("AEMEAEMEAEMR", 52, {"A": 13, "E": 22, "M": 13, "R": 4}, (12, 24, 36, 48)),
    "nam52": ("AEME", 52, {"A": 13, "E": 26, "M": 13, "R": 0}, ()),
    "quarter": ("AEMEAEMEAEMR", 13, {"A": 4, "E": 5, "M": 3, "R": 1}, (12,)),
}


@contract("PAT-01a", asks="blocks", cases=COUNTED, source="naming")
def every_family_is_counted(
    stack: Stack, pattern: str, depth: int, counts: dict[str, int], recurrent: tuple[int, ...]
) -> None:
    """NAM56R has 13 A, 22 E, 13 M and 4 R blocks, with R at layers 12, 24, 36 and 48. NAM52 has 13 A, 26 E and 13 M.

    The right depth proves nothing: two different recipes of 52 layers shared one nickname for weeks.
    """
    blocks = stack.blocks(pattern, depth)
    for letter, count in counts.items():
        found = blocks.count(FAMILIES[letter])
        assert found == count, f"{pattern} at {depth} has {found} {FAMILIES[letter]}s, expected {count}"
    layers = tuple(layer for layer, block in enumerate(blocks, start=1) if block == "rblock")
    assert layers == recurrent, f"R stands at layers {layers} (1-based), expected {recurrent}"


MALFORMED = {  # pattern, depth, the field to name, columns of which one must be named (none where there is no column)
    "unknown-letter": ("AEMXAEM", 14, "pattern", (4,)),
    "blank": ("AEMEA MR", 24, "pattern", (6,)),
    "newline-at-the-end": ("AEMR\n", 8, "pattern", (5,)),
    "lower-case": ("AEmE", 8, "pattern", (3,)),
    "lower-case-throughout": ("aemr", 8, "pattern", (1,)),
    "launcher-symbol": ("A*ME", 8, "pattern", (2,)),
    "mtp-suffix": ("AEMEAE/*-", 27, "pattern", (7,)),
    "cyrillic-a": ("AEM\u0410", 9, "pattern", (4,)),
    "empty": ("", 4, "pattern", ()),
    "depth-0": ("AEMR", 0, "depth", ()),
    "depth-negative": ("AEMR", -3, "depth", ()),
    "cuts-alone": ("||", 2, "pattern", ()),
    "empty-stage": ("AE||ME", 8, "pattern", (3, 4)),
}


@contract("PAT-02", asks="blocks", cases=MALFORMED, source="naming")
def a_malformed_pattern_is_refused_with_the_column(
    stack: Stack, pattern: str, depth: int, field: str, columns: tuple[int, ...]
) -> None:
    """A stack refuses an unknown letter, a blank, lower case, an empty pattern and a depth below 1, and names the
    column of a bad letter.

    Validation written with `assert` vanished under `python -O`, and the unknown letter became a block of another
    family.
    """
    refused = refusal_of(stack.blocks, pattern, depth)
    assert field in refused.fields, f"{shown(pattern)} at {depth}: {field} is not named: {refused}"
    named = not columns or numbers_in(refused) & set(columns)
    assert named, f"{shown(pattern)}: the refusal does not name column {columns[0]}: {refused}"


CUT = {  # pattern, depth → letters, or the numbers a refusal names (letters, depth)
    "exact": ("AEME|AEMR|M", 9, "AEMEAEMRM"),
    "nam56r-in-two": ("AEMEAEMEAEMRAEMEAEMEAEMRAE|MEAEMEAEMRAEMEAEMEAEMRAEME", 52, NAM56R),
    "would-tile": ("AEME|AEMR", 16, (8, 16)),
    "would-tile-with-a-tail": ("AEMEAEM|EAEMR", 52, (12, 52)),
    "would-be-truncated": ("AEME|AEMR", 7, (8, 7)),
}


@contract("PAT-02a", asks="blocks", cases=CUT, source="naming")
def a_cut_needs_every_layer_written_out(
    stack: Stack, pattern: str, depth: int, expected: str | tuple[int, int]
) -> None:
    """`|` is legal only where the pattern writes out exactly `depth` letters. `|` is not a layer itself.

    In a tiled pattern the same cut means something else in each period. One parser removed `|` only for its length
    check and then built a block for it. Another truncated the pattern to the depth and only warned.
    """
    if isinstance(expected, str):
        blocks = stack.blocks(pattern, depth)
        letters = tuple(FAMILIES[letter] for letter in expected)
        assert blocks == letters, f"{pattern} has {len(blocks)} blocks {blocks}, expected {len(letters)} {letters}"
        return
    refused = refusal_of(stack.blocks, pattern, depth)
    missing = set(expected) - numbers_in(refused)
    assert not missing, f"{pattern} at {depth}: the refusal does not name {sorted(missing)}: {refused}"


SPELLED = {  # pattern, depth → families
    "each-once": ("AEMR", 4, ("ablock", "eblock", "mblock", "rblock")),
    "twins": ("RRMMEEA", 8, ("rblock", "rblock", "mblock", "mblock", "eblock", "eblock", "ablock", "rblock")),
    "R-alone": ("R", 3, ("rblock", "rblock", "rblock")),
}


@contract("PAT-03", asks="blocks", cases=SPELLED, source="naming")
def a_letter_names_one_family(stack: Stack, pattern: str, depth: int, families: tuple[str, ...]) -> None:
    """A is always an ablock, E an eblock, M an mblock and R an rblock, wherever the letter is and whatever its
    neighbours are.

    M and R share a launcher symbol. A stack that reads its own pattern through that symbol builds no recurrence at all.
    """
    blocks = stack.blocks(pattern, depth)
    assert blocks == families, f"{pattern} at {depth} names {blocks}, expected {families}"


# pattern, depth, sparse A-ranks → full A-ranks, sparse layers, full layers
PLACED = {
    "nam52-9full-4sparse": (
        "AEME", 52, (8, 9, 10, 11), (0, 1, 2, 3, 4, 5, 6, 7, 12),
        (33, 37, 41, 45), (1, 5, 9, 13, 17, 21, 25, 29, 49),
    ),
    "nam52r-4full-9sparse": (
        "AEMEAEMEAEMR", 52, (1, 2, 3, 5, 6, 7, 9, 10, 11), (0, 4, 8, 12),
        (5, 9, 13, 21, 25, 29, 37, 41, 45), (1, 17, 33, 49),
    ),
    "uneven-strides": ("MAEAAR", 13, (4, 1), (0, 2, 3, 5), (4, 10), (2, 5, 8, 11)),
    "none": ("MAEAAR", 7, (), (0, 1, 2), (), (2, 4, 5)),
}  # fmt: skip


@contract("PAT-07", asks="placement", cases=PLACED, source="bringup")
def an_a_rank_is_an_ordinal(
    stack: Stack,
    pattern: str,
    depth: int,
    sparse: tuple[int, ...],
    full_ranks: tuple[int, ...],
    sparse_layers: tuple[int, ...],
    full_layers: tuple[int, ...],
) -> None:
    """An A-rank is the ordinal of an attention layer, counted from 0. NAM52 has sparse attention on A-ranks 8 … 11 and
    full attention on the other nine; NAM52R has full attention on 0, 4, 8 and 12 and sparse attention on the other
    nine.

    Reading `8,9,10,11` as layer numbers puts sparse attention on Mamba and expert layers. The inverse mix was reported
    under the same word, dense.
    """
    placed = stack.placement(pattern, depth, sparse)
    ranks = tuple(sorted(placed.sparse_ranks)), tuple(sorted(placed.full_ranks))
    assert ranks == (tuple(sorted(sparse)), full_ranks), f"sparse and full A-ranks are {ranks}, full: {full_ranks}"
    found = one_based(placed.sparse_layers)
    assert found == sparse_layers, f"sparse attention stands at layers {found} (1-based), expected {sparse_layers}"
    found = one_based(placed.full_layers)
    assert found == full_layers, f"full attention stands at layers {found} (1-based), expected {full_layers}"


MISPLACED = {  # pattern, depth, sparse ranks, the number to name
    "a-layer-number": ("AEME", 52, (33, 37, 41, 45), 33),
    "one-past-the-last": ("AEMEAEMEAEMR", 52, (1, 13), 13),
    "negative": ("AEME", 52, (-1, 8), 1),
    "twice": ("AEME", 52, (8, 9, 9), 9),
    "no-attention": ("MER", 52, (0,), 0),
}


@contract("PAT-07a", asks="placement", cases=MISPLACED, source="bringup")
def a_rank_that_is_none_is_refused(
    stack: Stack, pattern: str, depth: int, sparse: tuple[int, ...], number: int
) -> None:
    """A stack refuses an A-rank that the pattern does not have, or that is listed twice, and names its number."""
    refused = refusal_of(stack.placement, pattern, depth, sparse)
    assert number in numbers_in(refused), f"the refusal does not name {number}: {refused}"


INDEXED = {  # pattern, depth, sparse ranks
    "first-layer": ("RAEMR", 11, (1,)),
    "last-layer": ("MARA", 8, (0, 3)),
    "nam52r": ("AEMEAEMEAEMR", 52, (1, 2, 3, 5, 6, 7, 9, 10, 11)),
}


@contract("PAT-09", asks=("translate", "placement"), cases=INDEXED, source="F10")
def every_index_says_its_base(stack: Stack, pattern: str, depth: int, sparse: tuple[int, ...]) -> None:
    """Positions count from 0 and layer numbers from 1. Each index states its base, and under that base it points at the
    right letter.

    Three helpers of one stack return 1-based numbers and a fourth returns 0-based ones. Adding them names the layer
    after the intended one, which is always an E.
    """
    placed = stack.placement(pattern, depth, sparse)
    emitted = {
        "recurrent": (stack.translate(pattern, depth, True, False, 0).recurrent, "R"),
        "sparse_layers": (placed.sparse_layers, "A"),
        "full_layers": (placed.full_layers, "A"),
    }
    for name, (indices, letter) in emitted.items():
        for index in indices.numbers:
            position = index - indices.base
            inside = 0 <= position < depth
            assert inside, f"{name} {index} (base {indices.base}) is not one of {depth} layers"
            stands = pattern[position % len(pattern)]
            assert stands == letter, f"{name} {index} (base {indices.base}) is a layer of {stands}, not of {letter}"


DRAWN = {f"drawn-{seed}": (seed, 60) for seed in (11, 56, 4096)}


@contract("PAT-11", asks=("render", "blocks"), cases=DRAWN, source="naming")
def render_is_the_inverse_of_parse(stack: Stack, seed: int, draws: int) -> None:
    """For every legal pattern, `render` writes one letter per layer and keeps the cuts, and its text parses to the same
    blocks.

    A renderer that drops the tail, or loses the cuts in its output, still round-trips on the one pattern it was tried
    on.
    """
    draw = random.Random(seed)
    for _ in range(draws):
        pattern, depth = _legal(draw)
        text = stack.render(pattern, depth)
        wanted = pattern if "|" in pattern else "".join(pattern[i % len(pattern)] for i in range(depth))
        assert text == wanted, f"{pattern} at {depth} renders as {text!r}, expected {wanted!r}"
        once, twice = stack.blocks(pattern, depth), stack.blocks(text, depth)
        assert once == twice, f"{pattern} at {depth} and its rendering {text!r} name different blocks"
        again = stack.render(text, depth)
        assert again == text, f"{text!r} renders as {again!r}"


@contract("PAT-11a", asks=("render", "blocks"), cases=DRAWN, source="naming")
def every_illegal_pattern_is_refused(stack: Stack, seed: int, draws: int) -> None:
    """A stack refuses a pattern that was legal before one letter was corrupted, one stage was emptied, or the depth was
    changed while the pattern has a `|`.
    """
    draw = random.Random(seed)
    for _ in range(draws):
        pattern, depth = _illegal(draw)
        refusal_of(stack.blocks, pattern, depth)
        refusal_of(stack.render, pattern, depth)


def _legal(draw: random.Random) -> tuple[str, int]:
    letters = "".join(draw.choices("AEMR", k=draw.randint(1, 17)))
    if draw.random() < 0.5:
        return letters, draw.randint(1, 70)
    places = sorted(draw.sample(range(1, len(letters)), k=min(len(letters) - 1, draw.randint(0, 4))))
    edges = [0, *places, len(letters)]
    return "|".join(letters[start:end] for start, end in pairwise(edges)), len(letters)


def _illegal(draw: random.Random) -> tuple[str, int]:
    pattern, depth = _legal(draw)
    at = draw.randrange(len(pattern))
    spoils = [
        (pattern[:at] + draw.choice("aemrDGX*-+/ \t0\u0410") + pattern[at:], depth + 1),
        ("|" + pattern, depth),
        (pattern + "|", depth),
        (pattern, -depth),
    ]
    if "|" in pattern:
        spoils += [(pattern, depth + 1), (pattern.replace("|", "||", 1), depth)]
    return draw.choice(spoils)
