"""A job that dies while it writes which checkpoint is the latest leaves an empty file, from which no job resumes: the
file is opened, which empties it, and then written. Both checkpoints beside it are whole.
Exit code 0: the fault is there, with megatron-core 0.17 or later and psutil.
"""
import argparse, builtins, os, signal, sys, tempfile, typing
import torch
if not hasattr(typing, "override"): typing.override = lambda method: method  # Python 3.11
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.training import arguments, checkpointing, global_vars
class Host(torch.overrides.TorchFunctionMode):  # "cuda" is the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})
class Model:
    def sharded_state_dict(self, metadata): return {"w": ShardedTensor.from_rank_offsets("w", torch.ones(2))}
def save(at, step, dies):
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--ckpt-format", "torch_dist", "--no-save-optim", "--no-save-rng", "--save", at])
    args.use_dist_ckpt = True
    global_vars.set_args(args)
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: torch.device("cpu"))
    torch.cuda.get_rng_state = lambda *_: torch.ones(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    real = builtins.open
    def dying(path, mode="r", *rest, **named):
        file = real(path, mode, *rest, **named)
        os._exit(0) if dies and "w" in mode and "latest" in str(path) else None
        return file
    builtins.open = dying
    with Host(): checkpointing.save_checkpoint(step, [Model()], None, None, 0)
if __name__ == "__main__":  # Megatron's writers import this file again
    with tempfile.TemporaryDirectory() as at:
        for step in (2, 4):
            if (child := os.fork()) == 0: os.setpgrp(), save(at, step, step == 4), os._exit(0)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT), os.killpg(child, signal.SIGKILL)  # and its writers
        whole = [dist_checkpointing.check_is_distributed_checkpoint(f"{at}/iter_000000{step}") for step in (2, 4)]
        try: checkpointing.read_metadata(checkpointing.get_checkpoint_tracker_filename(at))
        except SystemExit: sys.exit(not all(whole))
    sys.exit(1)
