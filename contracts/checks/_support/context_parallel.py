"""How the rows of a batch are packed for cuts over context-parallel ranks."""

from __future__ import annotations

Rows = tuple[tuple[tuple[int, ...], int], ...]


HALVES: Rows = (((16,), 13), ((8, 8), 0), ((7, 2, 7), 6), ((9, 7), 0))
"""Rows of 16 tokens, cut at 8; the first rank has no label in the first of them."""


QUARTERS: Rows = (((8,), 5), ((2, 6), 0), ((1, 4, 3), 2), ((3, 3, 2), 0))
"""Rows of 8 tokens, cut at 2, 4 and 6."""
