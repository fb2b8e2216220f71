"""Megatron-Core parses, validates and configures what dies when the model is built or in its first step.

Parser, validation and configuration are its own, on an 8-rank world; the device is said to be a Hopper.
Run with an interpreter that has megatron-core 0.17 or later. Exit code 0: the fault is there, in every row.
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
BASE = """--hidden-size 128 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1
    --train-iters 10 --lr 1e-4 --position-embedding-type rope --no-rope-fusion --hybrid-layer-pattern"""
ROWS = {  # what is wrong → words
    "8 experts a token, of 4": "M*ME --num-experts 4 --moe-router-topk 8 --moe-ffn-hidden-size 64",
    "an E layer without experts": "M*ME",
    "16 ranks of experts in a world of 8": "M*ME --num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 64 "
    "--expert-model-parallel-size 16",
    "6 Mamba heads over 4 tensor ranks": "MM --mamba-num-heads 6 --tensor-model-parallel-size 4",
    "a pipeline stage without a layer": "M*||M-|M --pipeline-model-parallel-size 4",
}
for wrong, words in ROWS.items():
    sys.argv = ["megatron", *BASE.split(), *words.split()]
    arguments.validate_args(args := arguments.parse_args())
    arguments.core_transformer_config_from_args(args)
    print(f"accepted: {wrong} ({words})")
