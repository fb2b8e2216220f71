"""The question about corpora: which documents each split has, and how several datasets are blended.

Tokens are numbered from 1 over all documents of all datasets, so that a row says of what it was made.

- Each split has a part of the documents of each dataset. A document is whole and belongs to one split only; of n
  documents a split of weight w has n · w / (sum of the weights), to within one, or two if there are three splits. A
  weight of 0 gets nothing.
- A row is `length` tokens of documents of one dataset and one split, packed without gaps. An epoch of a dataset has
  each token at most once, and leaves out at most one row of them. The next epoch follows.
- Of the first n rows of a blend, each dataset has n · weight / (sum of the weights), to within one row, or two if there
  are more than two datasets; or the dataset of each row is drawn at random with these chances (convention
  `blend-order`).
- The order of rows is a function of the blend and the split: the batch, the ranks and a resume do not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from contracts.spec.party import Party

Split = Literal["train", "valid", "test"]


@dataclass(frozen=True, kw_only=True)
class Blend:
    """Datasets, and what a run makes of them.

    Args:
        documents: of each dataset, the number of tokens of each of its documents.
        split: the weights of training, validation and test, as an option has them: `969,30,1`. Numbers that are left
            out at the end are 0.
        weights: one a dataset; empty means by the number of its rows in an epoch.
        rows: how many rows the run takes of training, validation and test; empty means one epoch of each
            dataset, which a stack that only draws declines if there are several. It is not empty if there are weights.
        length: tokens in a row.
    """

    documents: tuple[tuple[int, ...], ...]
    split: str = "1"
    weights: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    length: int = 4
    seed: int = 1234


class Blending(Party, Protocol):
    """What a run reads of its datasets."""

    def rows_of(
        self, blend: Blend, split: Split, batch: int, rank: int, dp: int, consumed: int
    ) -> tuple[tuple[int, ...], ...]:
        """The rows that data-parallel rank `rank` of `dp` reads of a split, in order, as numbers of tokens.

        The run begins after `consumed` rows and takes `batch` rows a step, the ranks together. Rows at the end that do
        not fill a step are left out. A split of weight 0 has no row. Raises `Refused` for a split that is not one
        to three weights of at least 0 with one above, and if a split with a weight and rows gets no document.
        """
        ...
