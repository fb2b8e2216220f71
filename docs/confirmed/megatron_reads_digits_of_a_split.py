"""`--split` is searched for digits and points: a sign is dropped, and an exponent becomes a number of its own.

Run with an interpreter that has Megatron-Core 0.16.1 to 0.19.2. Exit code 0: the fault is there.
"""
import sys

from megatron.core.datasets.blended_megatron_dataset_config import parse_and_normalize_split

negative, exponent = parse_and_normalize_split("969,-30,1"), parse_and_normalize_split("9.69e2,30")
print(f"969,-30,1 are shares of {[round(each, 3) for each in negative]} for training, validation and test")
print(f"9.69e2,30 are shares of {[round(each, 3) for each in exponent]}, expected [0.97, 0.03, 0.0]")
sys.exit(negative[1] != 0.03 or exponent[2] < 0.5)
