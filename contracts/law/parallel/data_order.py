"""Which rank consumes which sequence at which step, and what a sequence holds.

Every check writes its own text of known length and bytes, and gives its path to the recipe.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.answers import refusal_of
from contracts.law._support.late import torch
from contracts.law._support.training_run import LETTERS, SEEDS
from contracts.spec import EXACT, Array, Batch, Data, Execution, Recipe, Refused, Session, Tokens, Training, chosen


@contextmanager
def _text(size: int, total: int, *, seed: int = 1234, length: int = 16, every: int = 0) -> Iterator[Recipe]:
    """A recipe over `size` bytes, no 17 in a row of which occur twice, with paragraphs of unequal length, or one after
    every so many bytes.
    """
    held = bytearray(33 + (7 * i + i * i // 5) % 90 for i in range(size))
    for start in range(9, size, every) if every else (21, 40, 41 + size // 3, size - 9):
        if 0 < start <= size - 2:
            held[start : start + 2] = b"\n\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_bytes(bytes(held))
        small = replace(LETTERS, vocab=256, seq_length=length, seed=seed, batch=Batch(micro=1, total=total))
        yield replace(small, data=Data(path=str(path)))


EPOCHS = {  # bytes, sequences a step, data-parallel size, sequences of an epoch: (bytes - 1) // 16; another length
    "a-step-divides-the-epoch": (16 * 12 + 5, 4, 1, 12),
    "two-ranks-share-whole-steps": (16 * 12 + 5, 4, 2, 12),
    "an-epoch-ends-inside-a-step": (16 * 7 + 5, 4, 2, 7),
    "a-step-is-longer-than-an-epoch": (16 * 5 + 1, 8, 4, 5),
    "more-than-a-hundred": (16 * 103 + 15, 12, 3, 103),
    "a-text-of-whole-sequences": (16 * 12, 4, 2, 11),  # the last of twelve has no label
    "one-sequence": (16 + 1, 4, 2, 1),
    "one-token": (2, 4, 2, 1, 1),
}


@contract("PAR-06a", asks="samples", cases=EPOCHS, source="F05")
def every_sequence_is_consumed_once_an_epoch(
    stack: Training, size: int, total: int, dp: int, epoch: int, length: int = 16
) -> None:
    """In every epoch, the ranks together consume each sequence id exactly once.

    A step that begins in one epoch ends in the next; nothing is dropped or padded at the border. The check reads three
    epochs.
    """
    with _text(size, total, length=length) as recipe:
        steps = range(1, 3 * epoch // total + 2)
        taken = [id for step in steps for rank in range(dp) for id in stack.samples(recipe, step, rank, dp)]
    for number in range(3):
        ids = taken[number * epoch : (number + 1) * epoch]
        repeated = sorted({id for id in ids if ids.count(id) > 1})
        assert not repeated, f"epoch {number} of {epoch} sequences consumes {repeated[:8]} more than once"
        lost = sorted(set(range(epoch)) - set(ids))
        assert not lost, f"epoch {number} of {epoch} sequences leaves out {lost[:8]}"
        extra = sorted(set(ids) - set(range(epoch)))
        assert not extra, f"epoch {number} of {epoch} sequences consumes {extra[:8]}, which the data does not have"


@contract("PAR-06b", asks="samples", cases={"2": (2,), "4": (4,), "12": (12,)}, source="F05")
def the_order_does_not_depend_on_the_ranks(stack: Training, dp: int) -> None:
    """In every step, dp ranks together consume the sequences that one rank would, in the same order and in equal
    shares.

    If the seed depends on the rank, or each rank permutes its own part, ranks consume the same sequence.
    """
    with _text(16 * 103 + 15, 12) as recipe:
        for step in (1, 2, 9, 10):
            ranks = [stack.samples(recipe, step, rank, dp) for rank in range(dp)]
            sizes = sorted({len(ids) for ids in ranks})
            assert sizes == [12 // dp], f"the ranks of dp {dp} take {sizes} sequences of 12 in step {step}"
            together, alone = tuple(id for ids in ranks for id in ids), stack.samples(recipe, step, 0, 1)
            assert together == alone, f"step {step} consumes {list(together)} on {dp} ranks, {list(alone)} on one"


@contract("PAR-06c", asks="samples", cases={"12-a-step": (12,), "5-a-step": (5,)}, source="F05")
def the_order_is_a_function_of_seed_and_epoch(stack: Training, total: int) -> None:
    """A step consumes the same sequences each time it is asked for, in whatever order steps are asked; another epoch or
    another seed gives another order.

    If the epoch is not counted, its order repeats. If a sampler shuffles a list that is already shuffled, the order
    depends on when the sampler was made.
    """
    with _text(16 * 60 + 3, total) as recipe:
        steps = range(1, 60 // total + 1)
        first = {step: stack.samples(recipe, step, 0, 1) for step in steps}
        for step in reversed(steps):
            again = stack.samples(recipe, step, 0, 1)
            assert again == first[step], (
                f"step {step} consumes {list(again)} when asked again, {list(first[step])} before"
            )
        epochs = [stack.samples(recipe, step, 0, 1) for step in (1, 1 + 60 // total)]
        assert epochs[0] != epochs[1], f"epochs 0 and 1 both begin with {list(epochs[0])}: their order is the same"
        assert list(epochs[0]) != list(range(total)), f"epoch 0 begins with {list(epochs[0])}: it is not shuffled"
    with _text(16 * 60 + 3, total, seed=4321) as recipe:
        other = stack.samples(recipe, 1, 0, 1)
    assert other != epochs[0], f"seeds 1234 and 4321 both begin with {list(other)}"


@contract("PAR-06o", asks="samples", cases={"240-sequences": (240,), "239-sequences": (239,)},
          conventions=("shuffle-reach",), source="F05")  # fmt: skip
def an_epoch_is_shuffled_as_a_whole(stack: Training, size: int) -> None:
    """An epoch is a free permutation of the sequences, or a declared shuffle buffer's order; the next epoch is not the
    same order rotated.

    On average a sequence stands n / 3 places from where it lies in the text, if every order is as likely. Blocks that
    are shuffled each by itself keep what lies together together: a step has the rows of one file. A rotation shows
    every sequence after the same one in every epoch.
    """
    with _text(16 * size + 3, 12) as recipe:
        flat = [id for step in range(1, 2 * size // 12 + 2) for id in stack.samples(recipe, step, 0, 1)]
    first, second = flat[:size], flat[size : 2 * size]
    moved = sum(abs(place - id) for place, id in enumerate(first)) / size
    assert moved >= size / 6 or chosen(stack, "shuffle-reach") == "buffer", (
        f"a sequence of {size} stands {moved:.1f} places from where it lies, on average: an epoch is not shuffled as a "
        "whole"
    )
    behind = dict(pairwise(first))
    kept = sum(behind.get(one) == other for one, other in pairwise(second))
    assert kept < size / 2, f"of {size} sequences {kept} stand after the same one in epochs 0 and 1"


@contract("PAR-06n", asks="samples", cases={"12-a-step": (12,)}, source="F05; F15")
def every_seed_gives_another_order(stack: Training, total: int) -> None:
    """No two of the seeds 0, 1, 7, 42, 1234, 1337 and 2^31 + 7 give the same order of sequences.

    `seed or 1234`, and a generator that takes 31 bits, make the orders of two seeds one.
    """
    orders: dict[tuple[int, ...], int] = {}
    for seed in SEEDS:
        with _text(16 * 60 + 3, total, seed=seed) as recipe:
            order = stack.samples(recipe, 1, 0, 1)
        first = orders.setdefault(order, seed)
        assert first == seed, f"seeds {first} and {seed} both begin with {list(order)}"


FAR = {"2-to-the-31": (2**31,), "2-to-the-32": (2**32,), "2-to-the-63": (2**63,)}


@contract("PAR-06k", asks="samples", cases=FAR, source="F05; DAT-13")
def the_order_holds_far_into_a_run(stack: Training, far: int) -> None:
    """In the epoch in which the number of sequences consumed passes 2³¹ (or 2³², 2⁶³), every sequence id is still
    consumed exactly once, and in an order of that epoch's own.

    A position in 32 bits turns negative: the loader dies, or continues and repeats sequences of another place.
    """
    with _text(16 * 60 + 3, 12) as recipe:
        epoch = far // 60
        first = epoch * 5 + 1
        taken, before, early = (
            [id for step in range(at, at + 5) for id in stack.samples(recipe, step, 0, 1)]
            for at in (first, first - 5, 1)
        )
    said = f"steps {first} to {first + 4}, about sequence {far} of the run,"
    repeated = sorted({id for id in taken if taken.count(id) > 1})
    assert not repeated, f"{said} consume {repeated[:8]} more than once in one epoch"
    lost = sorted(set(range(60)) - set(taken))
    assert not lost, f"{said} leave out {lost[:8]}"
    assert taken != early, f"{said} have the order of the first epoch, {taken[:6]}…"
    assert taken != before, f"{said} have the order of the epoch before, {taken[:6]}…"


STALE = {  # what changes between two runs of one process over one path: length, text, vocabulary, seed
    "another-length": ("length",),
    "another-text": ("text",),
    "another-vocabulary": ("vocab",),
}


@contract("PAR-06l", asks=("samples", "sample"), cases=STALE, source="OLMo-core #303")
def what_was_read_before_is_not_taken_for_something_else(stack: Training, change: str) -> None:
    """A run that uses the data path of an earlier run with another sequence length, another vocabulary or other content
    of the file reads its own sequences, not the earlier ones.

    An index or a token cache whose key leaves a field out is reused for another recipe, and trains on wrong tokens.
    """
    length, vocab = (20 if change == "length" else 16), (128 if change == "vocab" else 256)
    with _text(16 * 40 + 3, 4) as recipe:
        path = Path(str(recipe.data.path))
        for id in range(3):
            stack.sample(recipe, id)
        stack.samples(recipe, 1, 0, 1)
        if change == "text":
            path.write_bytes(bytes(reversed(path.read_bytes())))
        text = path.read_bytes()
        other = replace(recipe, seq_length=length, vocab=vocab)
        epoch = (len(text) - 1) // length
        ids = {id for step in range(1, epoch // 4 + 1) for id in stack.samples(other, step, 0, 1)}
        rows = {id: _values(stack.sample(other, id).tokens, length) for id in range(3)}
    for id, tokens in rows.items():
        want = [byte % vocab for byte in text[id * length : (id + 1) * length]]
        assert tokens == want, f"with {change} changed, sequence {id} is {tokens[:6]}…, its text has {want[:6]}…"
    strange = sorted(ids - set(range(epoch)))
    assert not strange, f"with {change} changed, an epoch of {epoch} sequences consumes {strange[:6]}"


UNEVEN = {"ranks-that-do-not-divide": (1, 0, 5), "a-rank-too-many": (1, 4, 4), "step-0": (0, 0, 1)}


@contract("PAR-06d", asks="samples", cases=UNEVEN, source="F05")
def shares_that_do_not_exist_are_refused(stack: Training, step: int, rank: int, dp: int) -> None:
    """A step whose sequences do not divide over the ranks, a rank that does not exist and a step before the first are
    refused.
    """
    with _text(16 * 60 + 3, 12) as recipe:
        refused = str(refusal_of(stack.samples, recipe, step, rank, dp))
    number = {5: "5", 4: "4", 1: "0"}[dp]
    assert number in refused, f"the refusal does not name {number}: {refused}"


TAKEN = {"one": (1,), "three": (3,), "a-border-in-every-sequence": (1, 13)}


@contract("PAR-06e", asks=("samples", "sample", "train"), cases=TAKEN, source="F05")
def a_step_trains_on_the_sequences_it_says(stack: Training, microbatches: int, every: int = 0) -> None:
    """A run over the stack's own data equals a run over the sequences that `samples` names, given as batches.

    The case takes five of twelve sequences a step and crosses the border of an epoch. The check compares ids, losses
    and weights. A mask that is made for the first sequence that is read and kept for all others is right where that
    sequence holds one document; here none does.
    """
    with _text(16 * 12 + 5, 5, every=every) as recipe:
        execution = Execution(microbatches=microbatches)
        session = Session(
            recipe=recipe, steps=3, execution=execution, observe=frozenset({"weights"}), at=frozenset({3})
        )
        sampled = stack.train(session)
        ids = [stack.samples(recipe, step, 0, 1) for step in (1, 2, 3)]
        given = tuple(_joined([stack.sample(recipe, id) for id in taken]) for taken in ids)
        as_batches = stack.train(replace(session, batches=given))
    for step, taken, other in zip(sampled.steps, ids, as_batches.steps, strict=True):
        assert step.samples == taken, f"step {step.number} consumed {list(step.samples)}, `samples` says {list(taken)}"
        one, two = step.losses["lm"], other.losses["lm"]
        assert one == two, f"lm of step {step.number} is {one:.8g} over {list(taken)}, {two:.8g} over them as batches"
    after, want = sampled.steps[2].weights, as_batches.steps[2].weights
    words = numerics.differences("after 3 steps", after, want, EXACT)
    assert not words, words


def _joined(rows: list[Tokens]) -> Tokens:
    def join(name: str) -> Array:
        return numerics.array(torch.cat([numerics.tensor(getattr(row, name)) for row in rows]))

    return Tokens(tokens=join("tokens"), labels=join("labels"), documents=join("documents"))


CUT = {"16": (16,), "21": (21,), "a-blank-line-across-a-cut": (11,)}
"""Lengths of a sequence. Sequences 2 and 7 of 11 tokens begin with the second half of a blank line."""


@contract("PAR-06f", asks="sample", cases=CUT, source="F05; torchtitan #4075")
def a_label_is_the_next_token_of_its_document(stack: Training, length: int) -> None:
    """The label of every position, the last included, is the next token in the text, or -100 where that token belongs
    to another document; sequences follow one another without a gap.

    The loss still falls when labels are shifted twice or not at all. What ends a document may be cut in two: whoever
    looks for it only within each sequence finds it in neither.
    """
    with _text(length * 9 + 6, 5, length=length) as recipe:
        text = Path(str(recipe.data.path)).read_bytes()
        rows = [stack.sample(recipe, id) for id in range(9)]
    for id, row in enumerate(rows):
        tokens, labels, documents = (_values(each, length) for each in (row.tokens, row.labels, row.documents))
        want = list(text[id * length : (id + 1) * length])
        assert tokens == want, f"sequence {id} is {tokens[:6]}…, the text has {want[:6]}…"
        steps = {after - before for before, after in pairwise(documents)}
        assert steps <= {0, 1}, f"the documents of sequence {id} are numbered {documents}"
        for at in range(length):
            crosses = text[: id * length + at + 1].endswith(b"\n\n")
            want_label = -100 if crosses else text[id * length + at + 1]
            assert labels[at] == want_label, (
                f"sequence {id} position {at} has label {labels[at]}, expected {want_label}"
            )
        starts = [at for at in range(1, length) if text[: id * length + at].endswith(b"\n\n")]
        found = [at for at in range(1, length) if documents[at] != documents[at - 1]]
        assert found == starts, f"documents of sequence {id} begin at {found}, blank lines end before {starts}"


@contract("PAR-06q", asks="sample", cases={"half": (8,), "all-but-a-token": (15,)}, source="F21; F05")
def a_text_shorter_than_a_sequence_gets_no_other_tokens(stack: Training, size: int) -> None:
    """If a text is shorter than one sequence, each label that counts follows its token in the text, whose last byte may
    be followed by its first; or the run is refused.

    Padding whose labels count makes a small file a model of zeros, with a loss that falls fast.
    """
    with _text(size, 1) as recipe:
        text = Path(str(recipe.data.path)).read_bytes()
        try:
            row = stack.sample(recipe, 0)
        except Refused:
            return
    follow = {(text[at], text[(at + 1) % size]) for at in range(size)}
    for at, (token, label) in enumerate(zip(_values(row.tokens, 16), _values(row.labels, 16), strict=True)):
        assert label == -100 or (token, label) in follow, (
            f"position {at} has token {token} and label {label}, which do not follow in the text of {size} bytes"
        )


def _values(value: Array | None, length: int) -> list[int]:
    assert value is not None, "a sequence says nothing about its documents"
    assert value.shape == (1, length), f"a sequence has shape {value.shape}, expected (1, {length})"
    found: list[int] = numerics.tensor(value)[0].tolist()
    return found
