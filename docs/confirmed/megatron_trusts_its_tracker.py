"""The latest checkpoint is the one that latest_checkpointed_iteration.txt names, whatever has become of its files:
where those of step 4 were cut off, a job that resumes fails, and the whole one of step 2 beside it is not tried.
Exit code 0: the fault is there, with megatron-core 0.17 or later and psutil.
"""
import os, sys, tempfile, typing
import torch
if not hasattr(typing, "override"): typing.override = lambda method: method  # Python 3.11
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.training import checkpointing
class Host(torch.overrides.TorchFunctionMode):  # "cuda" is the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})
def state(): return {"w": ShardedTensor.from_rank_offsets("w", torch.ones(99))}
def loads(path):
    try: return dist_checkpointing.load(state(), path) is not None
    except BaseException: return False  # a CheckpointException is one

if __name__ == "__main__":  # Megatron's writers import this file again
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as at, Host():
        for step in (2, 4):
            os.mkdir(path := checkpointing.get_checkpoint_name(at, step, return_base_dir=True))
            dist_checkpointing.save(state(), path)
        with open(tracker := checkpointing.get_checkpoint_tracker_filename(at), "w") as file: file.write("4")
        os.truncate(max((f"{path}/{name}" for name in os.listdir(path)), key=os.path.getsize), 99)
        latest, _ = checkpointing.read_metadata(tracker)
        two, four = (loads(checkpointing.get_checkpoint_name(at, step, return_base_dir=True)) for step in (2, 4))
        sys.exit(not (latest == 4 and two and not four))
