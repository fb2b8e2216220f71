"""Megatron-Core takes flags and runs something else: what each argv asks for, and what arguments and model end with.

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
ROWS = (  # words, the field of the configuration that they are about, what they ask for, what it ends as
    ("M*M- --tensor-model-parallel-size 1 --tensor-model-parallel-size 2", "tensor_model_parallel_size", 1, 2),
    ("M*M- --num-query-groups 2", "num_query_groups", 2, 8),
    ("M*M- --sequence-parallel", "sequence_parallel", True, False),
    ("M*M- --num-layers 8", "num_layers", 8, 4),
    ("M*M-/M- --mtp-num-layers 3", "mtp_num_layers", 3, 1),
    ("M*M- --mtp-num-layers 1", "/", 1, 0),  # heads of prediction in the pattern that the model is built from
    ("M*M- --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 64", "E", 4, 0),  # layers of experts in it
)
for words, field, asked, expected in ROWS:
    sys.argv = ["megatron", *BASE.split(), *words.split()]
    arguments.validate_args(args := arguments.parse_args())
    config = arguments.core_transformer_config_from_args(args)
    ended = getattr(config, field, args.hybrid_layer_pattern.count(field))
    print(f"{words}: {field} asked for {asked}, ends as {ended}")
    assert ended == expected, f"{field} ends as {ended}"
