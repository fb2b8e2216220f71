"""A float16 run that is saved before its first step that does not overflow cannot be loaded by Megatron-Core.

Its optimizer has no moments yet, and saves none; a load makes them first, and looks for them in the checkpoint.
Exit code 0: the fault is there.
"""
import sys, tempfile
from pathlib import Path

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer import MegatronModule, TransformerConfig


class Host(torch.overrides.TorchFunctionMode):  # what names CUDA means the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("cuda", "type") and len(args) == 1:
            return {"cuda": args[0], "type": f"torch.cuda.{str(args[0].dtype)[6:].replace('float16', 'Half')}Tensor"
                    .replace("float32", "Float")}[func.__name__]
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})

config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True, fp16=True, params_dtype=torch.half)


def built():
    bare = MegatronModule(config)
    bare.layer = ColumnParallelLinear(8, 8, config=config, init_method=torch.nn.init.ones_, bias=False)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), bare)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=0.1, fp16=True, params_dtype=torch.half, initial_loss_scale=4.0), [model],
        use_gloo_process_groups=False)
    return bare, model, optimizer


if __name__ == "__main__":  # a save starts processes that import this file
    torch.cuda.current_device, torch.cuda.synchronize = (lambda: "cpu"), (lambda *_: None)
    torch.cuda.current_stream = torch.cuda.synchronize
    with tempfile.TemporaryDirectory() as at:
        torch.distributed.init_process_group("gloo", init_method=f"file://{at}/ranks", rank=0, world_size=1)
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    with Host(), tempfile.TemporaryDirectory() as folder:
        bare, model, optimizer = built()
        said = []
        for overflows in (True, False):  # the load behind a step that was taken is for comparison
            model.zero_grad_buffer()
            bare.layer(torch.full((2, 1, 8), 2.0, dtype=torch.half))[0].sum().backward()
            for each in bare.parameters():
                each.main_grad.add_(float("inf") if overflows else 0.0)
            moved, *_ = optimizer.step()
            place = Path(folder, str(overflows))
            place.mkdir()
            dist_checkpointing.save({"optimizer": optimizer.sharded_state_dict(bare.sharded_state_dict())}, str(place))
            other, _, second = built()
            try:
                wanted = second.sharded_state_dict(other.sharded_state_dict(), is_loading=True)
                dist_checkpointing.load({"optimizer": wanted}, str(place))
                said.append("loaded")
            except BaseException as error:  # as torch's CheckpointException is
                said.append(f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:160]}")
            print(f"saved behind a step that {'moved' if moved else 'overflowed'}: {said[-1]}")
    sys.exit(not (said[0] != "loaded" and said[1] == "loaded"))
