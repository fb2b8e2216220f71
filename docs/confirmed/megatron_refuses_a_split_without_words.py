"""A `--split` of four weights is refused by an assertion without words, and one without any gives shares that are NaN.

Run with an interpreter that has Megatron-Core 0.16.1 to 0.19.2. Exit code 0: the fault is there.
"""

import math
import sys

from megatron.core.datasets.blended_megatron_dataset_config import parse_and_normalize_split

words = "accepted"
try:
    parse_and_normalize_split("8,1,1,1")
except AssertionError as error:
    words = str(error)
shares = parse_and_normalize_split("0,0,0")
print(f"--split 8,1,1,1: the words of its AssertionError are {words!r}")
print(f"--split 0,0,0: shares of {shares}; its builder ends with 'cannot convert float NaN to integer'")
sys.exit(bool(words) or not math.isnan(shares[0]))
