"""Megatron-Core's `GPTDataset` counts epochs until they have enough tokens: for ever if a split has no document.

Run with an interpreter that has Megatron-Core 0.16.1 to 0.19.2. Exit code 0: the fault is there.
"""
import signal
import sys
from types import SimpleNamespace

from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from megatron.core.datasets.gpt_dataset import GPTDataset

_, valid, _ = convert_split_vector_to_split_matrix(parse_and_normalize_split("9998,1,1"))
documents = [round(border * 1000) for border in valid]  # as the builder cuts
print(f"of 1000 documents validation has those from {documents[0]} to {documents[1]}, which are none")
asked = SimpleNamespace(num_samples=4, config=SimpleNamespace(sequence_length=8, add_extra_token_to_sequence=1))
signal.alarm(5)
signal.signal(signal.SIGALRM, lambda *_: print("its epochs are still counted after 5 s") or sys.exit(0))
GPTDataset._get_num_epochs(asked, 0)
sys.exit("the fault is not there")
