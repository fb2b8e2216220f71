"""Context parallel: how the rows of a batch are packed, and models whose state crosses from rank to rank."""

from dataclasses import replace

from contracts.instruments import numerics
from contracts.law._support.late import torch
from contracts.law._support.multi_rank_run import SPREAD
from contracts.law._support.training_run import Rows
from contracts.spec import Tokens

HALVES: Rows = (((16,), 13), ((8, 8), 0), ((7, 3, 6), 6), ((9, 7), 0))
"""Rows of 16 tokens, cut at 8; the first rank has no label in the first of them. Of the document that begins one token
before the cut, a token after it has a label, so that a loss shows a layer that loses what is before the cut."""

THIRDS: Rows = (((18,), 13), ((6, 12), 0), ((5, 8, 5), 3), ((13, 5), 2))
"""Rows of 18 tokens, cut at 6 and 12."""
QUARTERS: Rows = (((8,), 5), ((2, 6), 0), ((1, 4, 3), 2), ((3, 3, 2), 0))
"""Rows of 8 tokens, cut at 2, 4 and 6."""

SCANS = replace(SPREAD, name="context-scan", pattern="M", depth=1, moe=None)


RECURS = replace(SCANS, name="context-recurrence", pattern="R")


def last_label(length: int) -> Tokens:
    """4 rows of one document, all tokens different, with a label only at the last position of each row."""
    tokens_BT = torch.arange(4 * length).view(4, length)
    labels_BT = torch.full_like(tokens_BT, -100)
    labels_BT[:, -1] = tokens_BT[:, 0]
    array = numerics.array
    return Tokens(tokens=array(tokens_BT), labels=array(labels_BT))
