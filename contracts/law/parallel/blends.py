"""Which documents each split of a corpus has, and of which dataset each row of a blend is."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import get_args

from contracts.contract import contract
from contracts.spec import Blend, Blending, Refused, Split, chosen

Rows = tuple[tuple[int, ...], ...]
SPLITS: tuple[Split, ...] = get_args(Split)
UNEVEN = tuple(25 + 7 * i % 19 for i in range(37))
"""Documents of 25 to 43 tokens: what an epoch leaves out of a split, or a rank's last step, hides none of them."""
ONE, TWO = Blend(documents=(UNEVEN,), split="8,1,1"), Blend(documents=(UNEVEN, UNEVEN[5:28]), split="8,1,1")


def _read(stack: Blending, blend: Blend, split: Split, batch: int = 1, dp: int = 1, consumed: int = 0) -> list[Rows]:
    """The rows of each rank, each of `length` tokens of one dataset."""
    ranks, of = [stack.rows_of(blend, split, batch, rank, dp, consumed) for rank in range(dp)], _documents(blend)
    for row in (row for rows in ranks for row in rows):
        datasets = {of[id][0] if 0 < id < len(of) else None for id in row}
        said = f"a row of {split} is {list(row)}, expected {blend.length} tokens of one dataset, of 1 to {len(of) - 1}"
        assert len(row) == blend.length and len(datasets - {None}) == 1 == len(datasets), said  # noqa: PT018
    return ranks


def _documents(blend: Blend) -> list[tuple[int, int]]:
    """The dataset and the document of each token; tokens are numbered from 1."""
    named = [(at, number, length) for at, each in enumerate(blend.documents) for number, length in enumerate(each)]
    return [(-1, -1)] + [(at, number) for at, number, length in named for _ in range(length)]


def _split(stack: Blending, blend: Blend, dp: int = 1) -> list[set[tuple[int, int]]]:
    """The documents of each split, by what its rows hold."""
    of, read = _documents(blend), [_read(stack, blend, split, dp, dp) for split in SPLITS]
    return [{of[id] for rows in ranks for row in rows for id in row} for ranks in read]


WHOLE: dict[str, tuple[Blend, tuple[float, ...], int]] = {  # the weights, and the ranks that read
    "8-1-1": (ONE, (8, 1, 1), 1),
    "969-30-1": (replace(ONE, documents=((9, 11, 10, 10) * 250,), split="969,30,1"), (969, 30, 1), 1),
    "two-datasets-two-ranks": (TWO, (8, 1, 1), 2),
    "none-for-validation": (replace(TWO, split="2,0,1"), (2, 0, 1), 1),
    "none-for-test": (replace(ONE, split="9,1", seed=7), (9, 1, 0), 1),
    "more-than-an-epoch": (replace(ONE, rows=(700, 60, 90)), (8, 1, 1), 3),
}


@contract("PAR-20a", asks="rows_of", cases=WHOLE, source="marin #2700; OpenTau #498; parameter-golf #2127")
def a_document_is_in_one_split(stack: Blending, blend: Blend, weights: tuple[float, ...], dp: int) -> None:
    """Each document is in one split and no document is in two, whichever rank reads; of n documents each split has its
    weight's part to within one, or two if there are three splits, and a weight of 0 has none.

    Validation and test that are rounded down leave up to a document each, which training may have. If training is
    shuffled before it is cut and validation is not, or if each rank cuts with a generator of its own, what validation
    measures has been trained on.
    """
    found = _split(stack, blend, dp)
    _require_apart(found)
    left = sorted({*_documents(blend)[1:]} - found[0] - found[1] - found[2])
    assert not left, f"no split reads document {left[0][1]} of dataset {left[0][0]}, nor {len(left) - 1} others"
    near = max(1, sum(map(bool, weights)) - 1)
    for split, held, weight in zip(SPLITS, found, weights, strict=True):
        for at, each in enumerate(blend.documents):
            has, want = sum(of[0] == at for of in held), len(each) * weight / sum(weights)
            said = f"{split} has {has} of the {len(each)} documents of dataset {at}, by its weight {want:g}"
            assert abs(has - want) <= near * bool(weight), said


def _require_apart(found: list[set[tuple[int, int]]]) -> None:
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both = sorted(found[one] & found[other])
        assert not both, f"{SPLITS[one]} and {SPLITS[other]} both read document {both[0][1]} of dataset {both[0][0]}"


SPELT = {  # two spellings of the same weights
    "points": ("969,30,1", "96.9,3.0,.1"),
    "sum-of-one": ("8,1,1", "0.8,0.1,0.1"),
    "blanks": ("8,1,1", " 8, 1 ,1 "),
    "two-numbers": ("9,1,0", "9,1"),
    "exponents": ("969,30", "9.69e2,30"),
}


@contract("PAR-20b", asks="rows_of", cases=SPELT, source="F05")
def a_split_has_no_scale(stack: Blending, one: str, other: str) -> None:
    """The same weights in another scale or spelling split the documents in the same way, or the other spelling is
    refused.
    """
    blend = replace(ONE, documents=((9, 11, 10, 10) * 250,))
    first = _split(stack, replace(blend, split=one))
    try:
        second = _split(stack, replace(blend, split=other))
    except Refused as refused:
        _require_named(refused)
        return
    for split, held, again in zip(SPLITS, first, second, strict=True):
        said = f"{split} of {one!r} has {len(held)} documents and of {other!r} {len(again)}"
        assert held == again, f"{said}: {len(held ^ again)} are of one of the two only"


def _require_named(refused: Refused) -> None:
    assert "split" in str(refused), f"the refusal does not name the split: {refused}"


TINY = "9998,1,1"
NO_SPLIT = {
    "below-0": ("8,-1,1",),
    "a-word": ("8,x,1",),
    "nothing": ("0,0,0",),
    "four-weights": ("8,1,1,1",),
    "nan": ("nan,1,1",),
    "less-than-a-document": (TINY,),
}


@contract("PAR-20c", asks="rows_of", cases=NO_SPLIT, source="Megatron-LM #957; F05")
def what_is_no_split_is_refused(stack: Blending, split: str) -> None:
    """A split is refused if a weight is below 0 or no number, if none is above 0, if there are more than three, and if
    a weight is too small for a document while the run takes rows of that split, unless it gets one of its own.

    Whoever fills up an empty validation with documents of training measures nothing, and whoever counts epochs until
    there are enough tokens counts for ever.
    """

    try:
        found = _split(stack, replace(ONE, split=split, rows=(320, 4, 4)))  # training reads all that it has
    except Refused as refused:
        _require_named(refused)
        return
    got = ", ".join(f"{len(held)} of {part}" for part, held in zip(SPLITS, found, strict=True))
    assert split == TINY and all(found), f"{split!r} was accepted, expected a refusal; got documents: {got}"  # noqa: PT018
    _require_apart(found)


RUNS: dict[str, tuple[Blend, Split]] = {
    "train": (replace(ONE, rows=(96, 24, 24)), "train"),
    "valid": (replace(TWO, rows=(96, 24, 24), weights=(3, 1)), "valid"),
    "blend": (replace(TWO, rows=(96, 24, 24), weights=(3, 1)), "train"),
    "one-epoch": (ONE, "train"),
    "undivided": (replace(ONE, split="1", rows=(96, 1, 1)), "train"),
    "undivided-blend": (replace(TWO, split="1", rows=(96, 1, 1), weights=(3, 1)), "train"),
    "second-epoch": (replace(ONE, split="1", rows=(480, 1, 1)), "train"),
}


@contract(
    "PAR-20d", asks="rows_of", cases=RUNS, conventions=("rows-of-ranks",),
    source="accelerate #2694; Megatron-Bridge #5944; litData #363",
)  # fmt: skip
def rows_do_not_depend_on_who_reads_them(stack: Blending, blend: Blend, split: Split) -> None:
    """In each step the ranks together read the rows that one rank would, in equal shares; a run that begins where
    another was saved reads the rows that the other would have read next, with another batch too; and validation
    reads the same rows beside a longer training.

    If each rank cuts off the last rows of an epoch for itself, some ranks are an epoch ahead. A validation that is
    taken of the rows of the run, and not of the documents, moves with its length. A stack may declare that each rank
    packs documents of its own: then no rank reads what another has read in the same epoch.
    """
    ((alone),) = _read(stack, blend, split, 12)
    assert len(alone) >= 24, f"{split} has {len(alone)} rows, less than two steps"
    own = chosen(stack, "rows-of-ranks") == "documents"
    for dp in (2, 3, 12):
        ranks, share = _read(stack, blend, split, 12, dp), 12 // dp
        if own and 2 * len(alone) * blend.length < sum(map(sum, blend.documents)):  # no rank ends its epoch
            token, count = Counter(id for rows in ranks for row in rows for id in row).most_common(1)[0]
            assert count == 1, f"{dp} ranks read token {token} {count} times"
        for step in range(0 if own else len(alone) // 12):
            together = Counter(row for rows in ranks for row in rows[step * share : (step + 1) * share])
            other = [*(together - Counter(alone[step * 12 : (step + 1) * 12]))]
            assert not other, f"step {step + 1} of {split} has {other[:2]} on {dp} ranks, and not on one"
        uneven = {len(rows) for rows in ranks} - {len(alone) // dp}
        assert not uneven, f"a rank of {dp} reads {max(uneven)} rows, one rank {len(alone)}"
    for batch, consumed in ((12, 12), (4, 12), (12, len(alone) // 12 * 12 - 12)):
        (later,) = _read(stack, blend, split, batch, consumed=consumed)
        rest = alone[consumed:]
        assert later[: len(rest)] == rest, _moved(f"{split} resumed by {batch}", later, rest)
    if split == "valid":
        (again,) = _read(stack, replace(blend, rows=(240, *blend.rows[1:])), split, 12)
        assert again == alone, _moved(f"{split} beside 240 rows of training", again, alone)


def _moved(which: str, rows: Rows, before: Rows) -> str:
    at = next((at for at, (one, other) in enumerate(zip(rows, before, strict=False)) if one != other), len(rows))
    return f"{which}: row {at} of {len(rows)} is {rows[at : at + 1]}, of {len(before)} before {before[at : at + 1]}"


WEIGHTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # the same weights in another scale
    "3-to-1": ((3, 1), (0.75, 0.25)),
    "99-to-1": ((99, 1), (198, 2)),
    "eight": ((97, 5, 3, 1, 1, 1, 1, 1), (194, 10, 6, 2, 2, 2, 2, 2)),
    "a-weight-of-0": ((2, 0, 1), (4, 0, 2)),
}


@contract(
    "PAR-20e", asks="rows_of", cases=WEIGHTS, conventions=("blend-order",), source="Megatron-LM #705; PaddleNLP #8825"
)
def every_prefix_has_the_weights(stack: Blending, weights: tuple[float, ...], scaled: tuple[float, ...]) -> None:
    """Of the first n rows each dataset has n times its part of the weights, to within one row, or two rows if there are
    more than two datasets; if the datasets are drawn, to within two rows and six standard deviations. A weight of 0
    gets nothing. Another scale of the weights gives the same rows.

    Counts that come right at the end only change the blend of what a run has trained on so far.
    """
    blend = Blend(documents=tuple(UNEVEN[at : 37 - 2 * at] for at in range(len(weights))), rows=(300, 1, 1))
    (rows,), of = _read(stack, replace(blend, weights=weights), "train"), _documents(blend)
    assert len(rows) == 300, f"training reads {len(rows)} rows of 300"
    datasets = [of[row[0]][0] for row in rows]
    drawn = chosen(stack, "blend-order") == "drawn"
    for at, weight in sorted(enumerate(weights), key=lambda each: each[1]):
        part, near = weight / sum(weights), 2 if drawn else min(2, len(weights) - 1)
        for n in range(1, 301):
            count, room = datasets[:n].count(at), 6 * (n * part * (1 - part)) ** 0.5 if drawn and weight else 0
            said = f"of the first {n} rows {count} are of dataset {at}, by its weight {n * part:.4g}"
            assert abs(count - n * part) <= (near + room) * bool(weight), said
    (again,) = _read(stack, replace(blend, weights=scaled), "train")
    assert again == rows, _moved(f"train of weights {scaled}", again, rows)


EPOCHS = {"one-dataset": (ONE, 1.0), "two-datasets": (TWO, 1.0), "two-epochs-and-a-half": (ONE, 2.5)}


@contract("PAR-20f", asks="rows_of", cases=EPOCHS, source="Megatron-LM #1328; torchtitan #3008")
def an_epoch_has_each_token_once(stack: Blending, blend: Blend, epochs: float) -> None:
    """An epoch has no token twice and leaves out at most a row of each dataset; several epochs have none more often
    than there are epochs. After a token a row has the next one, or the first of a document.
    """
    tokens, of = sum(blend.documents[0]), _documents(blend)
    held, begins = replace(blend, split="1"), {at for at in range(1, len(of)) if of[at] != of[at - 1]}
    if epochs > 1:
        held = replace(held, rows=(int(epochs * ((tokens - 1) // held.length)), 1, 1))
    (rows,) = _read(stack, held, "train")
    counts, most = Counter(id for row in rows for id in row), -int(-epochs // 1)
    often = sorted(id for id, count in counts.items() if count > most)
    assert not often, f"{most} epochs read token {often[0]} {counts[often[0]]} times, and {len(often) - 1} others"
    for row in rows:
        gaps = [(one, other) for one, other in pairwise(row) if other != one + 1 and other not in begins]
        assert not gaps, f"a row has token {gaps[0][1]} after token {gaps[0][0]}, in one document"
    if epochs == 1:
        for at in range(len(blend.documents)):
            left = [id for id in range(1, len(of)) if of[id][0] == at and id not in counts]
            said = f"an epoch leaves out {len(left)} tokens of dataset {at}, the first of them {left[:1]}"
            assert len(left) <= held.length, said


AGAIN: dict[str, Blend] = {
    "one-dataset": replace(ONE, split="1", rows=(942, 1, 1)),
    "two-datasets": replace(TWO, split="1", rows=(1200, 1, 1), weights=(3, 1)),
}


@contract("PAR-20g", asks="rows_of", cases=AGAIN, conventions=("epoch-order",), source="Megatron-LM #697")
def an_epoch_has_an_order_of_its_own(stack: Blending, blend: Blend) -> None:
    """A dataset's second epoch is not in the order of its first: of pieces that follow each other in the second, most
    do not in the first. A stack may declare that every epoch is in the order of the first.

    The order is a function of the seed and of the epoch, and a loader that is made anew has only the seed.
    """
    (rows,), of = _read(stack, blend, "train"), _documents(blend)
    for dataset in range(len(blend.documents)):
        epochs: tuple[list[int], ...] = ([], [])
        counts = Counter[int]()
        for id in (id for row in rows for id in row if of[id][0] == dataset):
            if counts[id] < 2:
                epochs[counts[id]].append(id)
            counts[id] += 1
        both = {*epochs[0]} & {*epochs[1]}
        first, second = (list(pairwise(id for id in each if id in both)) for each in epochs)
        joints = {(one, other) for one, other in second if other != one + 1}
        kept, alike = len(joints & {*first}), chosen(stack, "epoch-order") == "alike"
        said = f"of {len(joints)} pairs of pieces of dataset {dataset}, {kept} follow each other in both epochs"
        assert first == second if alike else 2 * kept < len(joints), said
