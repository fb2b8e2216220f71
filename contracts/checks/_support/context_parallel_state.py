"""Models whose state crosses from rank to rank, and a batch that shows it."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.multi_rank_run import SPREAD
from contracts.spec.training import Tokens

SCANS = replace(SPREAD, name="context-scan", pattern="M", depth=1, moe=None)


RECURS = replace(SCANS, name="context-recurrence", pattern="R")


def last_label(length: int) -> Tokens:
    """4 rows of one document, all tokens different, with a label only at the last position of each row."""
    import torch

    tokens_BT = torch.arange(4 * length).view(4, length)
    labels_BT = torch.full_like(tokens_BT, -100)
    labels_BT[:, -1] = tokens_BT[:, 0]
    array = instruments.numerics.array
    return Tokens(tokens=array(tokens_BT), labels=array(labels_BT))
