"""A float16 run that is saved before its first step that does not overflow cannot be loaded by Megatron-Core.

Its optimizer has no moments yet, and saves none; a load looks for them. Exit code 0: the fault is there.
"""
import sys, tempfile

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer import MegatronModule, TransformerConfig

class Host(torch.overrides.TorchFunctionMode):  # what names CUDA means the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("cuda", "type") and len(args) == 1:
            return args[0] if func.__name__ == "cuda" else f"torch.cuda.{args[0].type().split('.')[1]}"
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})

def loads(overflows):
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True, fp16=True)
    bare = MegatronModule(config)
    bare.layer = ColumnParallelLinear(8, 8, config=config, init_method=torch.nn.init.ones_, bias=False).half()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), bare)
    optim = get_megatron_optimizer(OptimizerConfig(lr=0.1, fp16=True), [model], use_gloo_process_groups=False)
    bare.layer.weight.main_grad.fill_(float("inf") if overflows else 1.0), optim.step()
    with tempfile.TemporaryDirectory() as at:
        dist_checkpointing.save({"optimizer": optim.sharded_state_dict(bare.sharded_state_dict())}, at)
        try:  # into the same optimizer, as a run that resumes would
            wanted = optim.sharded_state_dict(bare.sharded_state_dict(), is_loading=True)
            return bool(dist_checkpointing.load({"optimizer": wanted}, at))
        except BaseException as error:  # as torch's CheckpointException is
            return print(str(error).strip().splitlines()[-1][:200])

if __name__ == "__main__":  # Megatron's writers import this file again
    torch.cuda.current_device, torch.cuda.synchronize = (lambda: "cpu"), (lambda *_: None)
    torch.cuda.current_stream, store = torch.cuda.synchronize, torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    with Host(): sys.exit(not loads(False) or bool(loads(True)))
