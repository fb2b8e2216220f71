"""A checkpoint of a model with experts is not loaded onto another expert parallel size: experts that are spread have an
optimizer of their own in the chain, and the state of one is not that of two. github.com/NVIDIA/Megatron-LM/issues/1517.
Exit code 0: the fault is there, with megatron-core and psutil.
"""
import os, sys, tempfile
import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
class Host(torch.overrides.TorchFunctionMode):  # "cuda" is the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})
def state(ep, loading):  # an optimizer of a model with two experts, and what is saved of both or asked for
    parallel_state.initialize_model_parallel(expert_model_parallel_size=ep, create_gloo_process_groups=False)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=2,
                               add_bias_linear=False, expert_model_parallel_size=ep, use_cpu_initialization=True)
    model = GPTModel(config, get_gpt_layer_local_spec(num_experts=2), vocab_size=16, max_sequence_length=4)
    chunk = DistributedDataParallel(config=config, ddp_config=DistributedDataParallelConfig(), module=model)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.1, clip_grad=0.0), [chunk], use_gloo_process_groups=False)
    loading or optimizer.step()
    found, metadata = {"model": model.sharded_state_dict()}, {"chained_optim_avoid_prefix": True}
    return optimizer, found | {"optimizer": optimizer.sharded_state_dict(found, is_loading=loading, metadata=metadata)}

def run(rank, after, at):  # saved by two ranks with both experts each, loaded under expert parallel of `after`
    torch.cuda.current_device, torch.cuda.synchronize = (lambda: "cpu"), (lambda *_: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{at}/store", rank=rank, world_size=2)
    with Host():
        dist_checkpointing.save(state(1, False)[1], at)
        parallel_state.destroy_model_parallel()
        optimizer, wanted = state(after, True)
        try: optimizer.load_state_dict(dist_checkpointing.load(wanted, at)["optimizer"])
        except RuntimeError as error: open(f"{at}/failed", "w").write(str(error))
def refused(after):
    with tempfile.TemporaryDirectory() as at:
        torch.multiprocessing.start_processes(run, (after, at), 2, start_method="fork")
        return os.path.exists(f"{at}/failed")
if __name__ == "__main__": sys.exit(refused(1) or not refused(2))  # Megatron's writers import this file again
