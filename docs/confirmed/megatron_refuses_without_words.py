"""Megatron-Core refuses --bf16 together with --fp16 by an assertion that says nothing.

Run with an interpreter that has megatron-core 0.17 or later. Exit code 0: the fault is there.
"""

import os
import sys
import typing
import warnings

import torch
import typing_extensions

warnings.simplefilter("ignore")
typing.override = typing_extensions.override  # Python 3.11 has none
os.environ.update(WORLD_SIZE="8", RANK="1", LOCAL_RANK="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
torch.cuda.get_device_capability = lambda *device: (9, 0)
from megatron.training import arguments

arguments.get_device_arch_version = lambda: 9
ARGV = """--hidden-size 128 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1
    --train-iters 10 --lr 1e-4 --position-embedding-type rope --disable-bias-linear --hybrid-layer-pattern M*M-
    --bf16 --fp16"""
sys.argv = ["megatron", *ARGV.split()]
args = arguments.parse_args()
try:
    arguments.validate_args(args)
except AssertionError as error:
    print(f"--bf16 --fp16: AssertionError, and its words are {str(error)!r}")
    sys.exit(bool(str(error)))
print("--bf16 --fp16: accepted")
sys.exit(1)
