"""Samplers that repeat, lose or reorder sequences, and labels that are off by one."""

from typing import ClassVar

import torch
from torch import Tensor

from contracts.law._bugs.numeric import IGNORED, DataOrder, Trainer, broken, derived, mutant, with_attributes
from contracts.spec import Recipe
from contracts.stacks.reference.data import Corpus, feistel_permutation


@mutant(of="PAR-06a", case="two-ranks-share-whole-steps", says="more than once")
@broken(DataOrder, "of_rank", "PAR-06a[more-than-a-hundred]: more than once", bugs=("DAT-08",))
def seeds_by_rank(of_rank, self, start, total, rank, dp):
    """seed + rank: every rank shuffles by itself, and the parts of the ranks overlap."""
    if dp == 1:
        return of_rank(self, start, total, rank, dp)
    return of_rank(DataOrder(self.size, self.seed + rank), start, total, rank, dp)


@broken(DataOrder, "id", "PAR-06a[an-epoch-ends-inside-a-step]: epoch 0 of 7 sequences", bugs=("DAT-17",))
def drops_the_tail_of_an_epoch(id, self, position):
    """drop_last: sequences that do not fill a step at the end of an epoch are never consumed."""
    usable = self.size - self.size % 4
    epoch, index = divmod(position, usable)
    return self.order(epoch, index)


@broken(DataOrder, "id", "PAR-06a[more-than-a-hundred]: more than once")
def fills_up_the_last_step(id, self, position):
    """Over-correction: the last step of an epoch is filled up with the first sequences of that epoch."""
    filled = -(-self.size // 12) * 12
    epoch, index = divmod(position, filled)
    return self.order(epoch, index % self.size)


@broken(DataOrder, "__init__", "PAR-06a[one-token]: of 1 sequences leaves out [0]")
def shuffles_at_least_two(init, self, size, seed):
    """A permutation of at least one bit: every other step takes a second sequence, which is not there."""
    init(self, max(size, 2), seed)


@broken(DataOrder, "ids", "PAR-06a[a-step-divides-the-epoch]: epoch 0 of 12 sequences", bugs=("DAT-24",))
def fetches_one_too_many(ids, self, start, count):
    """next() is called once too often to test for more data: each step loses a sequence."""
    return tuple(self.id(position + start // max(count, 1)) for position in range(start, start + count))


@broken(DataOrder, "id", "PAR-06a[a-step-divides-the-epoch]: epoch 0 of 12 sequences", bugs=("RSM-25",))
def skips_the_offset_each_epoch(id, self, position):
    """The offset of a resume is skipped in every epoch instead of only in the first."""
    epoch, index = divmod(position, self.size - 3)
    return self.order(epoch, index + 3)


@broken(DataOrder, "of_rank", "PAR-06b[4]: on 4 ranks")
def deals_sequences_out(of_rank, self, start, total, rank, dp):
    """Ranks take every dp-th sequence: the order of a step depends on the number of ranks."""
    return self.ids(start, total)[rank::dp]


@broken(DataOrder, "of_rank", "PAR-06b[2]: on 2 ranks")
def gives_every_rank_the_same(of_rank, self, start, total, rank, dp):
    """The sampler does not know its rank: every data-parallel rank trains on the first share."""
    return of_rank(self, start, total, 0, dp)


@broken(DataOrder, "order", "PAR-06c[12-a-step]: their order is the same", bugs=("RSM-26",))
def never_sets_the_epoch(order, self, epoch, index):
    """set_epoch is never called: every epoch has the order of the first."""
    return order(self, 0, index)


@broken(DataOrder, "order", "PAR-06c[5-a-step]: seeds 1234 and 4321 both begin with", bugs=("DAT-16",))
def ignores_the_seed(order, self, epoch, index):
    """The order depends on the epoch only."""
    return feistel_permutation(index, self.size, b"%d" % epoch)


@derived("PAR-06c[12-a-step]: when asked again", bugs=("DAT-02",))
class ShufflesWhatWasShuffled(DataOrder):
    """A resume shuffles the list that the previous run had already shuffled."""

    made = 0

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        type(self).made += 1
        self.turn = type(self).made

    def order(self, epoch: int, index: int) -> int:
        return feistel_permutation(super().order(epoch, index), self.size, b"%d" % self.turn)


@broken(DataOrder, "order", "PAR-06c[5-a-step]: it is not shuffled")
def reads_in_order(order, self, epoch, index):
    """shuffle=False, with an offset per epoch."""
    return (index + epoch) % self.size


@broken(DataOrder, "of_rank", "PAR-06d[ranks-that-do-not-divide]: expected a refusal")
def rounds_shares_down(of_rank, self, start, total, rank, dp):
    """Each rank takes total // dp sequences; the rest of every step is dropped."""
    return self.ids(start + rank * (total // dp), total // dp)


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


@broken(Corpus, "sequence", "PAR-06e[one]: lm of step 3 is")
def masks_the_labels_of_an_epoch_in_place(sequence, self, id):
    """A sequence that was read stays in memory, and a mask for one step is written into it: the next epoch has fewer
    labels.
    """
    self.held = getattr(self, "held", {})
    if id not in self.held:
        self.held[id] = sequence(self, id)
        return self.held[id]
    self.held[id][1][:, ::2] = IGNORED
    return self.held[id]


@derived("PAR-06e[a-border-in-every-sequence]: lm of step 1 is")
class KeepsTheMaskOfTheFirstSequence(Corpus):
    """The mask of labels is cached, and the cache is the tensor of the first sequence, into which its own mask is
    written (Megatron-LM #6981).
    """

    mask: Tensor | None = None

    def sequence(self, id: int) -> Three:
        tokens, labels, documents = super().sequence(id)
        self.mask = labels == IGNORED if self.mask is None else self.mask
        return tokens, labels.masked_fill(self.mask, IGNORED), documents


@broken(Corpus, "sequence", "PAR-06f[16]: sequence 0 position 0 has label", bugs=("DAT-06",))
def labels_are_tokens(sequence, self, id):
    """Labels are not shifted: the model learns to copy, and its loss falls to zero."""
    tokens, _, documents = sequence(self, id)
    return tokens, tokens.clone(), documents


@broken(Corpus, "sequence", "PAR-06f[16]: sequence 0 position 0 has label")
def shifts_labels_twice(sequence, self, id):
    """Both the loader and the collator shift the labels."""
    tokens, labels, documents = sequence(self, id)
    return tokens, torch.cat((labels[:, 1:], labels[:, -1:]), 1), documents


@broken(Corpus, "sequence", "PAR-06f[21]: expected -100")
def labels_cross_documents(sequence, self, id):
    """The label of a document's last token is the first token of the next document."""
    tokens, labels, documents = sequence(self, id)
    held = self.window(id)
    wide = torch.tensor(list(held[1:]))[None]
    return tokens, torch.where(labels == IGNORED, wide, labels), documents


@broken(Corpus, "before", "PAR-06f[a-blank-line-across-a-cut]: sequence 2 position 0 has label")
def looks_for_documents_in_each_sequence_alone(before, self, id):
    """Borders of documents are looked for after the cut into sequences: a blank line across a cut ends none."""
    return b""


@broken(Corpus, "__len__", "PAR-06a[a-text-of-whole-sequences]: epoch 0 of 11 sequences")
def counts_a_sequence_without_its_last_label(former, self):
    """Counts sequences by their tokens: the last one of a text of whole sequences has no label for its last token."""
    return len(self.stream) // self.length


@broken(Corpus, "sequence", "PAR-06f[16]: position 15 has label -100, expected", bugs=("DAT-05",))
def loses_the_last_label(sequence, self, id):
    """Labels are shifted inside the sequence, and its last token loses its label."""
    tokens, labels, documents = sequence(self, id)
    labels[:, -1] = IGNORED
    return tokens, labels, documents


@broken(Corpus, "window", "PAR-06f[21]: sequence 1 is")
def leaves_gaps_between_sequences(window, self, id):
    """Sequences are cut from windows of T + 1 bytes side by side: one byte in T + 1 is never a token."""
    step = self.length + 1
    return self.stream[id * step : (id + 1) * step].ljust(step, b" ")


@broken(DataOrder, "id", "PAR-06k[2-to-the-31]: more than once in one epoch", bugs=("DAT-13",))
def counts_in32_bits(id, self, position):
    """The position of a sequence is an int32 and turns negative beyond 2³¹."""
    return id(self, (position + 2**31) % 2**32 - 2**31)


@broken(DataOrder, "id", "PAR-06k[2-to-the-63]: more than once in one epoch")
def counts_in_floats(id, self, position):
    """The position passes through a float: beyond 2⁵³ neighbours are one."""
    return id(self, int(float(position)))


@broken(DataOrder, "order", "PAR-06k[2-to-the-32]: have the order of the first epoch")
def clamps_the_epoch(order, self, epoch, index):
    """Over-correction: an epoch beyond what the sampler expects is reset to the first."""
    return order(self, 0 if epoch > 1 << 20 else epoch, index)


class _CachedByPath(Corpus):
    read: ClassVar[dict[str | None, tuple[int, bytes]]] = {}

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.length, self.stream = self.read.setdefault(recipe.data.path, (self.length, self.stream))


with_attributes(
    "CachesTheTextByItsPath",
    "Keeps what it read under the name of the file, whatever became of the file.",
    "PAR-06l[another-text]: with text changed, sequence 0 is",
    owner=_CachedByPath,
)


@broken(_CachedByPath, "window", "PAR-06l[another-length]: with length changed, sequence 1 is", bugs=("DAT-12",))
def keys_the_index_without_the_length(window, self, id):
    """The key of the cached index leaves the sequence length out: offsets were made for another length."""
    step = self.recipe.seq_length
    return self.stream[id * self.length : id * self.length + step + 1]


@broken(DataOrder, "__init__", "PAR-06n[12-a-step]: seeds 0 and 1234 both begin with")
def takes_a_seed_of0_for_none_in_the_order(init, self, size, seed):
    """`seed or 1234`: the order of seed 0 equals the default's."""
    init(self, size, seed or 1234)


@broken(DataOrder, "__init__", "PAR-06n[12-a-step]: seeds 7 and 2147483655 both begin with")
def cuts_the_seed_of_the_order(init, self, size, seed):
    """The sampler's generator takes 31 bits, and so the seed is cut to them."""
    init(self, size, seed % 2**31)


@broken(DataOrder, "order", "PAR-06k[2-to-the-31]: have the order of the epoch before")
def counts_epochs_to255(order, self, epoch, index):
    """The epoch that seeds the order saturates at the end of a byte: every later epoch has one order."""
    return order(self, min(epoch, 255), index)


@broken(
    DataOrder,
    "order",
    "PAR-06o[239-sequences]: an epoch is not shuffled as a whole",
    "PAR-06o[240-sequences]: an epoch is not shuffled as a whole",
)
def shuffles_within_blocks(order, self, epoch, index):
    """Eight sequences at a time are shuffled, and stay together."""
    begin = index - index % 8
    length = min(8, self.size - begin)
    return begin + feistel_permutation(index - begin, length, f"{self.seed}/{epoch}/{begin}".encode())


@broken(DataOrder, "order", "PAR-06o[239-sequences]: stand after the same one in epochs 0 and 1")
def begins_the_same_order_elsewhere(order, self, epoch, index):
    """An epoch is the first one's order, begun at another place."""
    return order(self, 0, (index + 7 * epoch) % self.size)


with_attributes(
    "DeclaresABufferAndReadsInOrder",
    "A buffer of one sequence moves none.",
    "PAR-06o[240-sequences]: stand after the same one in epochs 0 and 1",
    owner=reads_in_order,
    conventions={"shuffle-reach": "buffer"},
)


@broken(Corpus, "window", "PAR-06q[half]: and label 0", "PAR-06q[all-but-a-token]: and label 0")
def fills_up_with_zeros(window, self, id):
    """A text shorter than a sequence is padded, and no label is taken from the padding."""
    return self.stream[id * self.length : (id + 1) * self.length + 1].ljust(self.length + 1, b"\0")
