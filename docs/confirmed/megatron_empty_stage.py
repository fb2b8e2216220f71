"""Megatron-Core reads a hybrid pattern with an empty pipeline segment, and an empty one, as a model of fewer layers.

Run with an interpreter that has megatron-core 0.18 or later. Exit code 0: the fault is there.
"""

import sys
import warnings

warnings.simplefilter("ignore")
from megatron.core.models.hybrid.hybrid_layer_allocation import (
    get_hybrid_total_layer_count,
    parse_hybrid_pattern,
)

found = {}
for pattern in ("M*||M-|M", ""):
    try:
        parse_hybrid_pattern(pattern)
        found[pattern] = get_hybrid_total_layer_count(pattern)
    except (AssertionError, ValueError) as error:
        found[pattern] = f"refused: {error}"
for pattern, said in found.items():
    print(f"{pattern!r}: {said}")
sys.exit(not all(isinstance(said, int) for said in found.values()))
