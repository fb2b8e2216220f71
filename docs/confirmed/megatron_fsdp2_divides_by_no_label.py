"""Under --use-torch-fsdp2 the number of labels divides no gradient: the wrapper's scale_gradients does nothing, and with
--calculate-per-token-loss losses are sums. Adam hides it; clipping and epsilon see gradients times the labels. Up to
0.18.1 no step ends at all: its finish_grad_sync takes no force_all_reduce.
Exit code 0: the fault is there, with megatron-core and psutil.
"""
import contextlib, sys
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.distributed import torch_fully_sharded_data_parallel as fsdp2
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer import TransformerConfig
class Host(torch.overrides.TorchFunctionMode):  # "cuda" is the CPU
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **{name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()})
class Mesh(torch.distributed.DeviceMesh):
    from_group = staticmethod(lambda group, _: torch.distributed.DeviceMesh.from_group(group, "cpu"))
def step():  # what Megatron's schedules call at the end of a step over 8 labels
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, calculate_per_token_loss=True,
                               use_cpu_initialization=True, add_bias_linear=False, transformer_impl="local")
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=16, max_sequence_length=4,
                     share_embeddings_and_output_weights=False)
    made = DistributedDataParallelConfig()
    chunk = fsdp2.TorchFullyShardedDataParallel(config=config, ddp_config=made, module=model)
    tokens, places = torch.arange(8).view(2, 4), torch.arange(4).expand(2, 4)
    chunk(tokens, places, torch.ones(1, 1, 4, 4).triu(1).bool(), labels=tokens).sum().backward()
    sums = [each.grad.full_tensor().clone() for each in model.parameters()]
    try: finalize_model_grads([chunk], torch.tensor(8))
    except TypeError as error: return "force_all_reduce" in str(error)
    return all(map(torch.equal, sums, (each.grad.full_tensor() for each in model.parameters())))
CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
torch.cuda.current_device, torch.cuda.synchronize, fsdp2.DeviceMesh = (lambda: "cpu"), (lambda *_: None), Mesh
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
with Host(): sys.exit(not step())
