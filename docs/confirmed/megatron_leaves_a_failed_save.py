"""A save that finds no room leaves what it has written: the folder of the step, and each file that was begun. A later
save of the step writes over them ("TODO Handle non-empty directories"); a run that does not come back to it never does.
Exit code 0: the fault is there, with megatron-core and psutil.
"""
import os, resource, sys, tempfile
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from torch.distributed.checkpoint.api import CheckpointException

if __name__ == "__main__":  # Megatron's writers import this file again
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as at:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try: dist_checkpointing.save({"w": ShardedTensor.from_rank_offsets("w", torch.ones(99))}, at)
        except (CheckpointException, RuntimeError): sys.exit(not os.listdir(at))
    sys.exit(1)
