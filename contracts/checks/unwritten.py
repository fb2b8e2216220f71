"""Promises of the law that no contract judges yet, grouped by what they wait for.

They stand here so that they stand in every report: a promise that is only remembered is a promise that is forgotten.
When a contract is written, its line here goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.contract import Tier, untested

_WAITING: Mapping[str, Mapping[str, tuple[Tier, str]]] = {
    "needs a GPU with Transformer Engine; the scales that the reference keeps itself are judged by PREC-04a": {
        "PREC-04b": ("gpu", "The state of FP8 that Transformer Engine holds survives save and resume."),
    },
}  # fmt: skip

for why, rows in _WAITING.items():
    for id, (tier, promise) in rows.items():
        untested(id, promise, why=why, tier=tier)
