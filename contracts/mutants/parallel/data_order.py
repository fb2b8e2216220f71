"""Samplers that repeat, lose or reorder sequences, and labels that are off by one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.trainer import Trained
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.data import IGNORED, Corpus, DataOrder, feistel_permutation
from contracts.stacks.reference.training.trainer import Trainer


class _SeedByRank(DataOrder):
    def of_rank(self, start: int, total: int, rank: int, dp: int) -> tuple[int, ...]:
        if dp == 1:
            return super().of_rank(start, total, rank, dp)
        return DataOrder(self.size, self.seed + rank).of_rank(start, total, rank, dp)


@mutant(of="PAR-06a", case="two-ranks-share-whole-steps", says="more than once")
@mutant(of="PAR-06a", case="more-than-a-hundred", says="more than once", bugs=("DAT-08",))
class SeedsByRank(Trained):
    """seed + rank: every rank shuffles by itself, and the parts of the ranks overlap."""

    class trains(Trainer):  # noqa: N801  # the attribute that the base asks for
        data_order_class = _SeedByRank


class _DropsTheTail(DataOrder):
    def id(self, position: int) -> int:
        usable = self.size - self.size % 4
        epoch, index = divmod(position, usable)
        return self.order(epoch, index)


@mutant(of="PAR-06a", case="an-epoch-ends-inside-a-step", says="epoch 0 of 7 sequences", bugs=("DAT-17",))
class DropsTheTailOfAnEpoch(Trained):
    """drop_last: sequences that do not fill a step at the end of an epoch are never consumed."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _DropsTheTail


class _FillsUp(DataOrder):
    def id(self, position: int) -> int:
        filled = -(-self.size // 12) * 12
        epoch, index = divmod(position, filled)
        return self.order(epoch, index % self.size)


@mutant(of="PAR-06a", case="more-than-a-hundred", says="more than once")
class FillsUpTheLastStep(Trained):
    """Over-correction: the last step of an epoch is filled up with the first sequences of that epoch."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _FillsUp


class _AtLeastTwo(DataOrder):
    def __init__(self, size: int, seed: int) -> None:
        super().__init__(max(size, 2), seed)


@mutant(of="PAR-06a", case="one-token", says="of 1 sequences leaves out [0]")
class ShufflesAtLeastTwo(Trained):
    """A permutation of at least one bit: every other step takes a second sequence, which is not there."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _AtLeastTwo


class _SkipsOne(DataOrder):
    def ids(self, start: int, count: int) -> tuple[int, ...]:
        return tuple(self.id(position + start // max(count, 1)) for position in range(start, start + count))


@mutant(of="PAR-06a", case="a-step-divides-the-epoch", says="epoch 0 of 12 sequences", bugs=("DAT-24",))
class FetchesOneTooMany(Trained):
    """next() is called once too often to test for more data: each step loses a sequence."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _SkipsOne


class _LateEachEpoch(DataOrder):
    def id(self, position: int) -> int:
        epoch, index = divmod(position, self.size - 3)
        return self.order(epoch, index + 3)


@mutant(of="PAR-06a", case="a-step-divides-the-epoch", says="epoch 0 of 12 sequences", bugs=("RSM-25",))
class SkipsTheOffsetEachEpoch(Trained):
    """The offset of a resume is skipped in every epoch instead of only in the first."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _LateEachEpoch


class _Strided(DataOrder):
    def of_rank(self, start: int, total: int, rank: int, dp: int) -> tuple[int, ...]:
        return self.ids(start, total)[rank::dp]


@mutant(of="PAR-06b", case="4", says="on 4 ranks")
class DealsSequencesOut(Trained):
    """Ranks take every dp-th sequence: the order of a step depends on the number of ranks."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _Strided


class _SameForAll(DataOrder):
    def of_rank(self, start: int, total: int, rank: int, dp: int) -> tuple[int, ...]:
        return super().of_rank(start, total, 0, dp)


@mutant(of="PAR-06b", case="2", says="on 2 ranks")
class GivesEveryRankTheSame(Trained):
    """The sampler does not know its rank: every data-parallel rank trains on the first share."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _SameForAll


class _OneEpoch(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        return super().order(0, index)


@mutant(of="PAR-06c", case="12-a-step", says="their order is the same", bugs=("RSM-26",))
class NeverSetsTheEpoch(Trained):
    """set_epoch is never called: every epoch has the order of the first."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _OneEpoch


class _Unseeded(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        return feistel_permutation(index, self.size, b"%d" % epoch)


@mutant(of="PAR-06c", case="5-a-step", says="seeds 1234 and 4321 both begin with", bugs=("DAT-16",))
class IgnoresTheSeed(Trained):
    """The order depends on the epoch only."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _Unseeded


class _Shuffling(DataOrder):
    made = 0

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        type(self).made += 1
        self.turn = type(self).made

    def order(self, epoch: int, index: int) -> int:
        return feistel_permutation(super().order(epoch, index), self.size, b"%d" % self.turn)


@mutant(of="PAR-06c", case="12-a-step", says="when asked again", bugs=("DAT-02",))
class ShufflesWhatWasShuffled(Trained):
    """A resume shuffles the list that the previous run had already shuffled."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _Shuffling


class _Unshuffled(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        return (index + epoch) % self.size


@mutant(of="PAR-06c", case="5-a-step", says="it is not shuffled")
class ReadsInOrder(Trained):
    """shuffle=False, with an offset per epoch."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _Unshuffled


class _RoundsDown(DataOrder):
    def of_rank(self, start: int, total: int, rank: int, dp: int) -> tuple[int, ...]:
        return self.ids(start + rank * (total // dp), total // dp)


@mutant(of="PAR-06d", case="ranks-that-do-not-divide", says="expected a refusal")
class RoundsSharesDown(Trained):
    """Each rank takes total // dp sequences; the rest of every step is dropped."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _RoundsDown


@broken(Trainer, "next", "PAR-06e[one]: `samples` says", bugs=("RSM-28",))
def counts_what_is_fetched(next, self, wanted=False):
    """Prefetching advances the data position before the step is taken: the first step begins one step late."""
    if not self.number:
        self.consumed += self.recipe.batch.total
    return next(self, wanted)


@broken(Trainer, "next", "PAR-06e[three]: `samples` says")
def applies_the_offset_again(next, self, wanted=False):
    """The position in the epoch is added to the position in the run, which then grows twice as fast."""
    done = next(self, wanted)
    self.consumed += len(done.samples)
    return done


@broken(Trainer, "batch", "PAR-06e[one]: of step 1 is")
def trains_on_other_sequences(batch, self, ids):
    """The run reports the right ids and reads sequences by position."""
    return batch(self, range(self.recipe.batch.total))


Three = tuple[Tensor, Tensor, Tensor]


class _MasksInMemory(Corpus):
    held: dict[int, Three]

    def sequence(self, id: int) -> Three:
        self.held = getattr(self, "held", {})
        if id not in self.held:
            self.held[id] = super().sequence(id)
            return self.held[id]
        self.held[id][1][:, ::2] = IGNORED
        return self.held[id]


@mutant(of="PAR-06e", case="one", says="lm of step 3 is")
class MasksTheLabelsOfAnEpochInPlace(Trained):
    """What was read stays in memory, and a mask for one step is written into it: the next epoch has fewer labels."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _MasksInMemory


class _MasksLikeTheFirst(Corpus):
    mask: Tensor | None = None

    def sequence(self, id: int) -> Three:
        tokens, labels, documents = super().sequence(id)
        self.mask = labels == IGNORED if self.mask is None else self.mask
        return tokens, labels.masked_fill(self.mask, IGNORED), documents


@mutant(of="PAR-06e", case="a-border-in-every-sequence", says="lm of step 1 is")
class KeepsTheMaskOfTheFirstSequence(Trained):
    """The mask of labels is cached, and the cache is the tensor of the first sequence, into which its own mask is
    written (Megatron-LM #6981).
    """

    class trains(Trainer):  # noqa: N801
        corpus_class = _MasksLikeTheFirst


class _Unshifted(Corpus):
    def sequence(self, id: int) -> Three:
        tokens, _, documents = super().sequence(id)
        return tokens, tokens.clone(), documents


@mutant(of="PAR-06f", case="16", says="sequence 0 position 0 has label", bugs=("DAT-06",))
class LabelsAreTokens(Trained):
    """Labels are not shifted: the model learns to copy, and its loss falls to zero."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _Unshifted


class _ShiftedTwice(Corpus):
    def sequence(self, id: int) -> Three:
        tokens, labels, documents = super().sequence(id)
        return tokens, torch.cat((labels[:, 1:], labels[:, -1:]), 1), documents


@mutant(of="PAR-06f", case="16", says="sequence 0 position 0 has label")
class ShiftsLabelsTwice(Trained):
    """Both the loader and the collator shift the labels."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _ShiftedTwice


class _AcrossDocuments(Corpus):
    def sequence(self, id: int) -> Three:
        tokens, labels, documents = super().sequence(id)
        held = self.window(id)
        wide = torch.tensor(list(held[1:]))[None]
        return tokens, torch.where(labels == IGNORED, wide, labels), documents


@mutant(of="PAR-06f", case="21", says="expected -100")
class LabelsCrossDocuments(Trained):
    """The label of a document's last token is the first token of the next document."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _AcrossDocuments


class _EachAlone(Corpus):
    def before(self, id: int) -> bytes:
        return b""


@mutant(of="PAR-06f", case="a-blank-line-across-a-cut", says="sequence 2 position 0 has label")
class LooksForDocumentsInEachSequenceAlone(Trained):
    """Borders of documents are looked for behind the cut into sequences: a blank line across a cut ends none."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _EachAlone


class _CountsTokens(Corpus):
    def __len__(self) -> int:
        return len(self.stream) // self.length


@mutant(of="PAR-06a", case="a-text-of-whole-sequences", says="epoch 0 of 11 sequences")
class CountsASequenceWithoutItsLastLabel(Trained):
    """Counts sequences by their tokens: the last one of a text of whole sequences has no label for its last token."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _CountsTokens


class _LosesTheLast(Corpus):
    def sequence(self, id: int) -> Three:
        tokens, labels, documents = super().sequence(id)
        labels[:, -1] = IGNORED
        return tokens, labels, documents


@mutant(of="PAR-06f", case="16", says="position 15 has label -100, expected", bugs=("DAT-05",))
class LosesTheLastLabel(Trained):
    """Labels are shifted inside the sequence, and its last token loses its label."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _LosesTheLast


class _Gapped(Corpus):
    def window(self, id: int) -> bytes:
        step = self.length + 1
        return self.stream[id * step : (id + 1) * step].ljust(step, b" ")


@mutant(of="PAR-06f", case="21", says="sequence 1 is")
class LeavesGapsBetweenSequences(Trained):
    """Sequences are cut from windows of T + 1 bytes side by side: one byte in T + 1 is never a token."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _Gapped


class _In32Bits(DataOrder):
    def id(self, position: int) -> int:
        return super().id((position + 2**31) % 2**32 - 2**31)


@mutant(of="PAR-06k", case="2-to-the-31", says="more than once in one epoch", bugs=("DAT-13",))
class CountsIn32Bits(Trained):
    """The position of a sequence is an int32 and turns negative behind 2³¹."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _In32Bits


class _ThroughFloats(DataOrder):
    def id(self, position: int) -> int:
        return super().id(int(float(position)))


@mutant(of="PAR-06k", case="2-to-the-63", says="more than once in one epoch")
class CountsInFloats(Trained):
    """The position passes through a float: behind 2⁵³ neighbours are one."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _ThroughFloats


class _EpochInAByte(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        return super().order(0 if epoch > 1 << 20 else epoch, index)


@mutant(of="PAR-06k", case="2-to-the-32", says="have the order of the first epoch")
class ClampsTheEpoch(Trained):
    """Over-correction: an epoch beyond what the sampler expects is reset to the first."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _EpochInAByte


class _CachedByPath(Corpus):
    read: ClassVar[dict[str | None, tuple[int, bytes]]] = {}

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.length, self.stream = self.read.setdefault(recipe.data.path, (self.length, self.stream))


@mutant(of="PAR-06l", case="another-text", says="with text changed, sequence 0 is")
class CachesTheTextByItsPath(Trained):
    """Keeps what it read under the name of the file, whatever became of the file."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _CachedByPath


class _CachedLength(_CachedByPath):
    def window(self, id: int) -> bytes:
        step = self.recipe.seq_length
        return self.stream[id * self.length : id * self.length + step + 1]


@mutant(of="PAR-06l", case="another-length", says="with length changed, sequence 1 is", bugs=("DAT-12",))
class KeysTheIndexWithoutTheLength(Trained):
    """The key of the cached index leaves the sequence length out: offsets are those of another length."""

    class trains(Trainer):  # noqa: N801
        corpus_class = _CachedLength


class _SeedOfSome(DataOrder):
    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed or 1234)


class _ReadsBySome(Trainer):
    data_order_class = _SeedOfSome


@mutant(of="PAR-06n", case="12-a-step", says="seeds 0 and 1234 both begin with")
class TakesASeedOf0ForNoneInTheOrder(Trained):
    """`seed or 1234`: the order of seed 0 is that of the default."""

    trains = _ReadsBySome


class _SeedOf31Bits(DataOrder):
    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed % 2**31)


class _ReadsBy31Bits(Trainer):
    data_order_class = _SeedOf31Bits


@mutant(of="PAR-06n", case="12-a-step", says="seeds 7 and 2147483655 both begin with")
class CutsTheSeedOfTheOrder(Trained):
    """The sampler's generator takes 31 bits, and so the seed is cut to them."""

    trains = _ReadsBy31Bits


class _EpochTo255(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        return super().order(min(epoch, 255), index)


@mutant(of="PAR-06k", case="2-to-the-31", says="have the order of the epoch before")
class CountsEpochsTo255(Trained):
    """The epoch that seeds the order saturates at the end of a byte: every later epoch has one order."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _EpochTo255


class _WithinBlocks(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        begin = index - index % 8
        length = min(8, self.size - begin)
        return begin + feistel_permutation(index - begin, length, f"{self.seed}/{epoch}/{begin}".encode())


@mutant(of="PAR-06o", case="240-sequences", says="an epoch is not shuffled as a whole")
@mutant(of="PAR-06o", case="239-sequences", says="an epoch is not shuffled as a whole")
class ShufflesWithinBlocks(Trained):
    """Eight sequences at a time are shuffled, and stay together."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _WithinBlocks


class _Rotated(DataOrder):
    def order(self, epoch: int, index: int) -> int:
        return super().order(0, (index + 7 * epoch) % self.size)


@mutant(of="PAR-06o", case="239-sequences", says="stand behind the same one in epochs 0 and 1")
class BeginsTheSameOrderElsewhere(Trained):
    """An epoch is the first one's order, begun at another place."""

    class trains(Trainer):  # noqa: N801
        data_order_class = _Rotated


@mutant(of="PAR-06o", case="240-sequences", says="stand behind the same one in epochs 0 and 1")
class DeclaresABufferAndReadsInOrder(ReadsInOrder):
    """A buffer of one sequence moves none."""

    conventions = {"shuffle-reach": "buffer"}
