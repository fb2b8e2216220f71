"""Promises of the law that no contract judges yet, grouped by what they wait for.

They stand here so that they stand in every report: a promise that is only remembered is a promise that is forgotten.
When a contract is written, its line here goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.contract import Tier, untested

_WAITING: Mapping[str, Mapping[str, tuple[Tier, str]]] = {
    "the traffic of a step cannot be observed before there is a step": {
        "TRAF-04": ("unit", "Collectives and bytes of a step per axis are a snapshot for each lane of NAM56R at its "
                            "true size."),
    },
    "needs a GPU with Transformer Engine; the scales that the reference keeps itself are judged by PREC-04a": {
        "PREC-04b": ("gpu", "The state of FP8 that Transformer Engine holds survives save and resume."),
    },
    "needs several ranks, and the parallel reference is not built yet": {
        "MEM-01b": ("dist", "Predicted bytes a rank equal the bytes of the model as sharded, at true size, without "
                            "allocating it."),
    },
}  # fmt: skip

for why, rows in _WAITING.items():
    for id, (tier, promise) in rows.items():
        untested(id, promise, why=why, tier=tier)
