"""With --dist-ckpt-optim-fully-reshardable Megatron-Core saves weights and moments of all buckets but the first shifted.

It leaves out the padding behind each bucket, and prints a warning. Exit code 0: the fault is there.
"""
import sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer import MegatronModule, TransformerConfig


class Host(torch.overrides.TorchFunctionMode):  # what names CUDA means the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("cuda", "type") and len(args) == 1:
            return {"cuda": args[0], "type": "torch.cuda.FloatTensor"}[func.__name__]
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})

torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
with tempfile.TemporaryDirectory() as at:
    torch.distributed.init_process_group("gloo", init_method=f"file://{at}/ranks", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True)
bare = MegatronModule(config)
for name, value in (("first", torch.nn.init.ones_), ("second", lambda weight: weight.fill_(2.0))):
    setattr(bare, name, ColumnParallelLinear(8, 8, config=config, init_method=value, bias=False))
model = DistributedDataParallel(config, DistributedDataParallelConfig(
    use_distributed_optimizer=True, overlap_grad_reduce=True, bucket_size=64), bare)
with Host():
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=0.0, use_distributed_optimizer=True), [model], use_gloo_process_groups=False)
    bare.second(bare.first(torch.ones(2, 1, 8))[0])[0].sum().backward()
    model.finish_grad_sync(), optimizer.step()
    told = optimizer.sharded_state_dict(
        bare.sharded_state_dict(), metadata={"distrib_optim_sharding_type": "fully_reshardable"})
saved = {each["param"].key: each["param"].data.unique().tolist() for each in told["param_state"].values()}
print(f"the weights are 1 in the first layer and 2 in the second; those that are saved are {saved}")
sys.exit([*saved.values()] == [[2.0], [1.0]])
