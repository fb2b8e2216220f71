"""A checkpoint in float32 is loaded into a model that holds bfloat16, and cast without a word: the dtype of what was
saved is compared with nothing. A run that resumes in another precision continues with rounded moments.
Exit code 0: the fault is there, with megatron-core and psutil.
"""
import os, sys, tempfile
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

if __name__ == "__main__":  # Megatron's writers import this file again
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as at:
        dist_checkpointing.save({"w": ShardedTensor.from_rank_offsets("w", torch.full((4,), 1 + 2.0**-20))}, at)
        half = ShardedTensor.from_rank_offsets("w", torch.zeros(4, dtype=torch.bfloat16))
        sys.exit(not bool((dist_checkpointing.load({"w": half}, at, strict="raise_all")["w"] == 1).all()))
