"""Stacks that split or blend a corpus with one bug."""

import random
import re
from dataclasses import replace

from contracts.law._bugs.broken import broken, with_attributes
from contracts.stacks.reference import blends
from contracts.stacks.reference.data import DataOrder, feistel_permutation


@broken(blends, "documents", "PAR-20a[8-1-1]: train and valid both read document")
def shuffles_before_it_cuts(documents, held, split, part):
    """Training is shuffled and cut, validation is cut as it stands."""
    cut = documents(held, split, part)
    return [feistel_permutation(at, held, b"") for at in cut] if part == "train" else cut


@broken(blends, "rows_of", "PAR-20a[two-datasets-two-ranks]: train and valid both read document")
def ranks_validate_on_what_they_train(rows_of, blend, part, *reader):
    """The loader of validation is made on rank 0; the other ranks take the one that they have."""
    return rows_of(blend, "train" if part == "valid" and reader[1] else part, *reader)


def _rounded_down(held, split, part):
    at, counts = blends.SPLITS.index(part), [int(held * each) for each in blends.shares(split)]
    return range(sum(counts[:at]), sum(counts[: at + 1]))


@broken(blends, "documents", "PAR-20a[8-1-1]: no split reads document 35 of dataset 0, nor 1 others")
def cuts_each_split_down(documents, held, split, part):
    """Each split has its part rounded down, and what is left is in none."""
    return _rounded_down(held, split, part)


@broken(blends, "documents", "PAR-20a[none-for-test]: test has 1 of the 37 documents of dataset 0, by its weight 0")
def gives_the_rest_to_the_last(documents, held, split, part):
    """Each split has its part rounded down, and test has what is left, whatever its weight."""
    cut = _rounded_down(held, split, part)
    return range(cut.start, held) if part == "test" else cut


@broken(blends, "shares", "PAR-20b[exponents]: train of '969,30' has 970 documents and of '9.69e2,30' 232",
        "PAR-20c[below-0]: was accepted, expected a refusal")  # fmt: skip
def searches_for_digits(shares, split):
    """A split is what looks like numbers in it."""
    return shares(",".join(re.findall(r"[.0-9]+", split)[:3]))


@broken(blends, "documents", "PAR-20c[less-than-a-document]: train and valid both read document")
def borrows_from_training(documents, held, split, part):
    """A split that is empty has all documents, so that nobody stops."""
    return documents(held, split, part) or range(held)


@broken(blends, "rows_of", "PAR-20d[train]: step 1 of train has ", bugs=("DAT-08",))
def each_rank_has_a_seed(rows_of, blend, part, batch, rank, *rest):
    """The seed has the rank in it, so that ranks read each other's rows again."""
    return rows_of(replace(blend, seed=blend.seed + rank), part, batch, rank, *rest)


@broken(blends, "rows_of", "PAR-20d[one-epoch]: a rank of 12 reads")
def each_rank_drops_its_own_tail(rows_of, blend, part, batch, rank, dp, consumed):
    """Rows are dealt out first, and each rank leaves out what fills no step of its own."""
    mine = blends.order(blend, part)[consumed + rank :: dp]
    return tuple(mine[: len(mine) // (batch // dp) * (batch // dp)])


@broken(blends, "rows_of", "PAR-20d[blend]: a rank of 2 reads 44 rows, one rank 96")
def the_last_rank_ends_early(rows_of, blend, part, batch, rank, dp, consumed):
    """The rows that the last rank would read in the last step are not there."""
    mine = rows_of(blend, part, batch, rank, dp, consumed)
    return mine[: -4 if 0 < rank == dp - 1 else None]


@broken(blends, "rows_of", "PAR-20d[blend]: train resumed by 4: ", bugs=("RSM-26",))
def resumes_by_steps(rows_of, blend, part, batch, rank, dp, consumed):
    """The rows that were read are counted in steps of twelve, whatever a step has."""
    return rows_of(blend, part, batch, rank, dp, consumed // 12 * batch)


@broken(blends, "rows_of", "PAR-20d[second-epoch]: train resumed by 12: row 0 of 324 is ", bugs=("RSM-26",))
def resumes_in_the_first_epoch(rows_of, blend, part, batch, rank, dp, consumed):
    """A run that is resumed knows how far it was in its epoch, and not in which."""
    return rows_of(blend, part, batch, rank, dp, consumed if consumed < 314 else consumed - 314)


@broken(blends, "rows_of", "PAR-20d[undivided]: step 1 of train has ")
def all_ranks_read_all_documents(rows_of, blend, part, batch, rank, dp, consumed):
    """Each rank packs documents, and none of them is another's."""
    return rows_of(blend, part, batch // dp, 0, 1, consumed)[: blend.rows[0] // dp]


with_attributes(
    "PacksAllDocumentsOnEachRank", "Each rank is said to pack documents of its own, and packs all of them.",
    "PAR-20d[undivided]: 2 ranks read token", owner=all_ranks_read_all_documents,
    conventions={"rows-of-ranks": "documents"},
)  # fmt: skip


@broken(blends, "order", "PAR-20d[valid]: valid beside 240 rows of training: ")
def shuffles_by_the_length_of_training(order, blend, part):
    """The rows of training are a part of the seed of every split."""
    return order(replace(blend, seed=blend.seed + sum(blend.rows[:1])), part)


@broken(blends, "sources", "PAR-20e[3-to-1]: of the first 5 rows 0 are of dataset 1, by its weight 1.25")
def reads_one_dataset_after_another(sources, weights, rows):
    """The counts come right with the last row."""
    return sorted(sources(weights, rows))


with_attributes(
    "DeclaresADrawAndReadsInOrder",
    "The counts come right with the last row, and the datasets are said to be drawn.",
    "PAR-20e[3-to-1]: rows 0 are of dataset 1, by its weight",
    owner=reads_one_dataset_after_another,
    conventions={"blend-order": "drawn"},
)


@broken(blends, "sources", "PAR-20e[eight]: of the first ")
def draws_and_does_not_say_so(sources, weights, rows):
    """The dataset of each row is drawn, where order by weight is declared."""
    return random.Random(1).choices(range(len(weights)), [float(each) for each in weights], k=rows)


@broken(blends, "order", "PAR-20e[a-weight-of-0]: are of dataset 1, by its weight 0")
def every_dataset_has_a_row(order, blend, part):
    """No weight is below a hundredth, so that each dataset is seen."""
    return order(replace(blend, weights=tuple(max(each, sum(blend.weights) / 100) for each in blend.weights)), part)


@broken(blends, "order", "PAR-20e[3-to-1]: train of weights (0.75, 0.25): ")
def weights_are_a_part_of_the_seed(order, blend, part):
    """The seed is of a description of the blend, in which 3 to 1 is not 0.75 to 0.25."""
    return order(replace(blend, seed=blend.seed + int(4 * sum(blend.weights))), part)


@broken(blends, "tokens_of", "PAR-20f[one-dataset]: 1 epochs read token")
def reads_the_last_document_twice(tokens_of, lengths, first, chosen):
    """An epoch is filled up from its last document."""
    return tokens_of(lengths, first, [*chosen, *chosen[-1:]])


@broken(blends, "tokens_of", "PAR-20f[one-dataset]: an epoch leaves out")
def cuts_documents_to_rows(tokens_of, lengths, first, chosen):
    """The tokens of a document that do not fill a row are left out."""
    return [id for at in chosen for id in tokens_of(lengths, first, [at])[: lengths[at] // 4 * 4]]


@broken(blends, "tokens_of", "PAR-20f[two-datasets]: a row has token")
def deals_out_tokens(tokens_of, lengths, first, chosen):
    """Tokens go in turn to two workers, and a row is one worker's."""
    return sorted(tokens_of(lengths, first, chosen), key=lambda id: id % 2)


@broken(DataOrder, "id", "PAR-20f[two-epochs-and-a-half]: 3 epochs read token")
def draws_rows_with_replacement(id, self, position):
    """Each row is drawn from all rows again."""
    return feistel_permutation(position, 2**31, f"{self.seed}".encode()) % self.size


@broken(DataOrder, "order", "PAR-20g[one-dataset]: pairs of pieces of dataset 0, ",
        "PAR-20g[two-datasets]: pairs of pieces of dataset 0, ")  # fmt: skip
def reads_every_epoch_as_the_first(order, self, epoch, index):
    """The loader does not know which epoch it is in."""
    return order(self, 0, index)


with_attributes(
    "DeclaresOneOrderAndHasMany",
    "Every epoch has an order of its own, and is said to have that of the first.",
    "PAR-20g[one-dataset]: follow each other in both epochs",
    conventions={"epoch-order": "alike"},
)
