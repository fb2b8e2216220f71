"""The launcher's hybrid syntax: how a pattern is written in Megatron's symbols, and how a launcher reads it.

`*` attention, `D` sparse attention, `M` Mamba, `E` experts, `-` a dense MLP; `|` cuts stages, `/` begins a head pattern
of multi-token prediction. There is no symbol for R. Layer numbers in the tables are 1-based.
"""

from contracts.contract import contract
from contracts.law._support.answers import megatron_flags, one_based, refusal_of
from contracts.spec import Dsa, Lane, Mla, Moe, NotOffered, Recipe, Refused, Stack, chosen

# pattern, depth, moe → main pattern in the launcher's symbols
TRANSLATED = {
    "nam56r": ("AEMEAEMEAEMR", 52, True, "*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME"),
    "nam56r-no-moe": ("AEMEAEMEAEMR", 52, False, "*-M-*-M-*-MM*-M-*-M-*-MM*-M-*-M-*-MM*-M-*-M-*-MM*-M-"),
    "nam52": ("AEME", 52, True, "*EME*EME*EME*EME*EME*EME*EME*EME*EME*EME*EME*EME*EME"),
    "nam52-no-moe": ("AEME", 14, False, "*-M-*-M-*-M-*-"),
    "quarter": ("AEMEAEMEAEMR", 13, True, "*EME*EME*EMM*"),
    "cut": ("AEME|AEMR|M", 9, True, "*EME|*EMM|M"),
}


@contract("PAT-04", asks="translate", cases=TRANSLATED, source="naming")
def translation_keeps_length_and_order(stack: Stack, pattern: str, depth: int, moe: bool, expected: str) -> None:
    """A becomes `*`, E becomes `E` with experts and `-` without, and M and R become `M`, letter for letter.

    One published sample wrote `*` for E without experts: 35 attention layers where the model has 13.
    """
    main = stack.translate(pattern, depth, moe, False, 0).main
    assert len(main) == len(expected), f"{main!r} has {len(main)} symbols, expected {len(expected)}"
    for column, (symbol, wanted) in enumerate(zip(main, expected, strict=True), start=1):
        assert symbol == wanted, f"column {column} is {symbol!r}, expected {wanted!r} in {main!r}"


RECURRENT = {  # pattern, depth → layer numbers of R
    "nam56r": ("AEMEAEMEAEMR", 52, (12, 24, 36, 48)),
    "nam52-has-none": ("AEME", 52, ()),
    "first-and-last": ("RAEMR", 11, (1, 5, 6, 10, 11)),
    "cut": ("RM|AR", 4, (1, 4)),
}


@contract("PAT-04a", asks="translate", cases=RECURRENT, source="naming")
def recurrence_is_carried_beside_the_pattern(stack: Stack, pattern: str, depth: int, expected: tuple[int, ...]) -> None:
    """The launcher has no symbol for R, so a stack passes the layer numbers of R next to the translated pattern.

    Without them four of seventeen Mamba-family layers run another mixer, and no log says so.
    """
    translation = stack.translate(pattern, depth, True, False, 0)
    layers = one_based(translation.recurrent)
    assert layers == expected, f"R is carried for layers {layers} (1-based), expected {expected}"
    assert "R" not in translation.main, f"the launcher receives {translation.main!r}, but R is not one of its symbols"


NATIVE, AUTHOR = Lane(mode="nemo_native"), Lane(mode="author_dp")


def _recipe(pattern: str, depth: int, *sparse: int) -> Recipe:
    dsa = Dsa(a_ranks=sparse) if sparse else None
    return Recipe(
        name="pattern-case", family="nam56r", pattern=pattern, depth=depth, hidden=768, ffn_hidden=1536, heads=12,
        kv_groups=4, seq_length=512, moe=Moe(), mla=Mla() if sparse else None, dsa=dsa,
    )  # fmt: skip


BUILT_IN_MIXER = {  # lane, whether it keeps R
    "author": (AUTHOR, True),
    "native": (NATIVE, False),
}


@contract("PAT-04b", asks="launch", cases=BUILT_IN_MIXER, source="naming")
def a_launch_says_where_r_went(stack: Stack, lane: Lane, keeps: bool) -> None:
    """A launch carries the layer numbers of R. A lane that runs the built-in mixer at those layers states that it gives
    up R.
    """
    launch = stack.launch(_recipe("AEMEAEMEAEMR", 27), lane)
    layers = one_based(launch.recurrent)
    assert layers == (12, 24), f"the launch carries R for layers {layers} (1-based), expected (12, 24)"
    if not keeps and launch.launcher == "megatron-core":
        assert launch.gives_up, (
            f"{lane.mode} runs a Mamba mixer at layers 12 and 24 and does not say that it gives up R"
        )


SPARSE = {  # pattern, depth, moe → main pattern
    "nam56r": ("AEMEAEMEAEMR", 52, True, "DEMEDEMEDEMMDEMEDEMEDEMMDEMEDEMEDEMMDEMEDEMEDEMMDEME"),
    "nam52-no-moe": ("AEME", 14, False, "D-M-D-M-D-M-D-"),
    "cut": ("AEM|ARA", 6, True, "DEM|DMD"),
}


@contract("PAT-05", asks="translate", cases=SPARSE, source="naming")
def the_sparse_symbol_replaces_every_attention(
    stack: Stack, pattern: str, depth: int, moe: bool, expected: str
) -> None:
    """With the DSA symbol requested, every A of the main pattern becomes `D` and no `*` remains. A runtime without
    sparse attention refuses instead of substituting dense attention.

    Megatron refuses a pattern that mixes `*` and `D`. A launcher that fell back to `*` when the indexer was missing
    trained dense attention under a sparse name.
    """
    try:
        main = stack.translate(pattern, depth, moe, True, 0).main
    except Refused as refused:
        if not any("dsa" in field for field in refused.fields):
            raise
        raise NotOffered(f"the runtime has no sparse attention: {refused}", "stack") from None
    assert "*" not in main, f"`*` stays at column {main.index('*') + 1} of {main!r}"
    assert main == expected, f"the main pattern is {main!r}, expected {expected!r}"


SOME_SPARSE = {"nam52": ("AEME", 52, (8, 9, 10, 11)), "all-but-one": ("AEM", 14, (0, 1, 2, 4))}


@contract("PAT-05a", asks="launch", cases=SOME_SPARSE, source="naming; bringup")
def a_mix_is_refused_where_the_launcher_cannot_say_it(
    stack: Stack, pattern: str, depth: int, sparse: tuple[int, ...]
) -> None:
    """A native Megatron lane refuses sparse attention in only some of the attention layers. It neither extends it to
    all of them nor drops it.
    """
    megatron_flags(stack.launch(_recipe("AEM", 12), NATIVE))
    refused = refusal_of(stack.launch, _recipe(pattern, depth, *sparse), NATIVE)
    assert any("dsa" in field for field in refused.fields), f"the refusal does not name dsa: {refused}"


LAUNCHED = {  # pattern, depth, sparse A-ranks → layers of R, sparse layers
    "nam52r": (
        "AEMEAEMEAEMR", 52, (1, 2, 3, 5, 6, 7, 9, 10, 11), (12, 24, 36, 48), (5, 9, 13, 21, 25, 29, 37, 41, 45),
    ),
    "nam52": ("AEME", 52, (8, 9, 10, 11), (), (33, 37, 41, 45)),
    "from-the-first-layer": ("RAEMAR", 14, (0, 3), (1, 6, 7, 12, 13), (2, 11)),
}  # fmt: skip


@contract("PAT-09a", asks="launch", cases=LAUNCHED, source="F10; bringup")
def a_launch_numbers_its_layers(
    stack: Stack, pattern: str, depth: int, sparse: tuple[int, ...], recurrent: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    """If the launcher's pattern cannot express them, a launch carries the numbers of the R layers and of the sparse
    attention layers, counted from the base (0 or 1) that it states.

    This is the last place where A-ranks, positions and layer numbers can be confused.
    """
    launch = stack.launch(_recipe(pattern, depth, *sparse), AUTHOR)
    found = one_based(launch.recurrent)
    assert found == recurrent, f"the launch carries R for layers {found} (1-based), expected {recurrent}"
    found = one_based(launch.sparse)
    assert found == layers, f"the launch carries sparse attention for layers {found} (1-based), expected {layers}"


PREDICTED = {  # pattern, depth, dsa, heads → main pattern
    "quarter-twice": ("AEMEAEMEAEMR", 13, False, 2, "*EME*EME*EMM*"),
    "once": ("AEMEAEMEAEMR", 14, False, 1, "*EME*EME*EMM*E"),
    "sparse-main-thrice": ("AEME", 6, True, 3, "DEMEDE"),
    "cut": ("AEM|RAE", 6, False, 2, "*EM|M*E"),
}


@contract("PAT-06", asks="translate", cases=PREDICTED, source="naming")
def prediction_is_a_suffix(stack: Stack, pattern: str, depth: int, dsa: bool, heads: int, expected: str) -> None:
    """Multi-token prediction appends one head pattern per depth after `/`, all identical, and leaves the main pattern,
    the depth and R unchanged.

    Counting heads as layers shifts every later layer number. An exporter that knew only `|` dropped the heads.
    """
    with_heads = stack.translate(pattern, depth, True, dsa, heads)
    without = stack.translate(pattern, depth, True, dsa, 0)
    assert with_heads.main == expected, f"with {heads} heads the main pattern is {with_heads.main!r}, not {expected!r}"
    assert len(with_heads.mtp) == heads, f"{len(with_heads.mtp)} head patterns, expected {heads}: {with_heads.mtp}"
    assert len(set(with_heads.mtp)) == 1, f"the head patterns differ: {with_heads.mtp}"
    head = with_heads.mtp[0]
    assert head, "the head pattern is empty"
    assert not set(head) & set("|/RA"), f"{head!r} is not a head pattern of the launcher"
    assert not without.mtp, f"without prediction there are head patterns {without.mtp}"
    moved = f"with heads R stands at {with_heads.recurrent}, without at {without.recurrent}"
    assert with_heads.recurrent == without.recurrent, moved


BLOCKS = {"*": {"attention"}, "D": {"ds_attention", "dsa"}, "M": {"mamba"}, "E": {"moe"}, "-": {"mlp"}}
"""Symbol → what launchers call the block that they read from it."""

# pattern, depth, moe, dsa, heads → the symbols whose blocks the launcher must read, which skip the cuts
ACCEPTED = {
    "nam56r": ("AEMEAEMEAEMR", 52, True, False, 0, "*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME"),
    "nam52-no-moe": ("AEME", 14, False, False, 0, "*-M-*-M-*-M-*-"),
    "sparse-with-heads": ("AEMEAEMEAEMR", 13, True, True, 2, "DEMEDEMEDEMMD"),
    "cut-with-a-head": ("AEME|AEMR|M", 9, True, False, 1, "*EME*EMMM"),
}


@contract("PAT-10", asks=("translate", "read_pattern"), cases=ACCEPTED, source="naming")
def the_launcher_reads_the_same_blocks(
    stack: Stack, pattern: str, depth: int, moe: bool, dsa: bool, heads: int, expected: str
) -> None:
    """The launcher's own parser accepts the emitted pattern and reads the same blocks from it.

    Agreement with one's own table proves little: `R`, `A` and every new symbol of a development branch were in
    somebody's table, and the launcher's parser refused them on the cluster.
    """
    _is_read_as(stack, stack.translate(pattern, depth, moe, dsa, heads).text, expected, heads)


READ = {  # text → symbols of the main pattern, heads
    "hybrid": ("*EME*EME*EMM*", "*EME*EME*EMM*", 0),
    "dense": ("*-M-*-M", "*-M-*-M", 0),
    "sparse": ("DEMD-M", "DEMD-M", 0),
    "cut": ("*EME|*EMM|M", "*EME*EMMM", 0),
    "two-heads": ("*EMEM/*-/*-", "*EMEM", 2),
    "dense-heads-under-a-sparse-main": ("DEM/*-/*-/*-", "DEM", 3),
    "virtual-pipeline": (
        "*EME*EME*EMM*|EME*EME*EMM*E|ME*EME*EMM*EM|E*EME*EMM*EME/*-/*-",
        "*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME",
        2,
    ),
}


@contract("PAT-10a", asks="read_pattern", cases=READ, source="naming; Megatron-Core hybrid_layer_allocation")
def a_launcher_reads_a_legal_pattern(stack: Stack, text: str, expected: str, heads: int) -> None:
    """A launcher reads one block per symbol, in order; `|` gives no block, and prediction heads are a count, not
    layers.
    """
    _is_read_as(stack, text, expected, heads)


UNREADABLE = {
    "mixed-attention": "*EMD",
    "mixed-across-a-cut": "*EM|DEM",
    "our-letter-R": "*EMR",
    "our-letter-A": "AEME",
    "lower-case": "*em-",
    "blank": "*E M",
    "unequal-heads": "*EME/*-/*M",
    "cut-inside-a-head": "*EME/*|-",
    "mixed-head": "*EME/*D",
    # The parser of Megatron-Core 0.19.2 accepts the next two; validation then divides by the length of the last.
    "empty-segment": "M*||M-|M",
    "empty": "",
}


@contract(
    "PAT-10b", asks="read_pattern", cases=UNREADABLE, source="naming; Megatron-Core hybrid_layer_allocation",
    conventions=("empty-pattern",),
)  # fmt: skip
def a_launcher_refuses_an_illegal_pattern(stack: Stack, text: str) -> None:
    """A launcher refuses `*` mixed with `D`, unknown symbols, unequal heads, `|` inside a head, and an empty stage or
    pattern, before any rank builds a model. An empty pattern may be declared to be a model without layers.
    """
    if not text and chosen(stack, "empty-pattern") == "no-layers":
        try:
            read = stack.read_pattern(text)
        except Refused as refused:
            raise AssertionError(f"{text!r} is refused, expected a model without layers: {refused}") from None
        assert (read.main, read.mtp, read.mtp_depth) == ((), (), 0), f"{text!r} is read as {read}, expected no layers"
        return
    refusal_of(stack.read_pattern, text)


def _is_read_as(stack: Stack, text: str, expected: str, heads: int) -> None:
    read = stack.read_pattern(text)
    assert len(read.main) == len(expected), f"{text!r} is read as {len(read.main)} blocks, expected {len(expected)}"
    for layer, (block, symbol) in enumerate(zip(read.main, expected, strict=True), start=1):
        assert block in BLOCKS[symbol], f"layer {layer} (1-based) of {text!r} is read as {block}, expected {symbol!r}"
    assert read.mtp_depth == heads, f"{text!r} is read with {read.mtp_depth} heads, expected {heads}"
