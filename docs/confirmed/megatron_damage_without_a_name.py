"""If a file of a checkpoint was emptied, the load fails with "Ran out of input"; where integrity.json was cut off,
with a JSONDecodeError. No path is named, and a job over thousands of files cannot say which one to restore.
Exit code 0: the fault is there, with megatron-core 0.17 or later and psutil.
"""
import os, sys, tempfile
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

if __name__ == "__main__":  # Megatron's writers import this file again
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as at:
        state = {"w": ShardedTensor.from_rank_offsets("w", torch.ones(4))}
        dist_checkpointing.save(state, at, verify_integrity=True)
        named, first = [], "common.pt" if os.path.exists(f"{at}/common.pt") else ".distcp"  # 0.19 has no common.pt
        for name, load in ((first, lambda: dist_checkpointing.load_common_state_dict(at)),
                           ("integrity.json", lambda: dist_checkpointing.load(state, at, verify_integrity=True))):
            path, = (f"{at}/{each}" for each in os.listdir(at) if each.endswith(name))
            with open(path, "rb") as file: content = file.read()
            with open(path, "wb") as file: file.write(content[: 99 if "json" in name else 0])
            try: load()
            except BaseException as error: named.append(os.path.basename(path) in str(error))
            with open(path, "wb") as file: file.write(content)
        sys.exit(named != [False, False])
