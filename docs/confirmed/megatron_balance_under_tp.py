"""With calculate_per_token_loss and sequence parallel, Megatron-Core 0.17 and 0.18 divide balance and z loss by TP.

Each rank weighs them by its own tokens, and finalize_model_grads divides by those of both. PR 5047. Exit code 0: it is so.
"""
import sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter


def gradient(rank, ranks, folder):
    torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{ranks}", rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(ranks, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_router_topk=2, moe_z_loss_coeff=0.1,
        moe_router_load_balancing_type="none", tensor_model_parallel_size=ranks, sequence_parallel=ranks > 1,
        add_bias_linear=False, use_cpu_initialization=True, calculate_per_token_loss=True)
    bare, x = MegatronModule(config), torch.linspace(-1, 1, 128).view(16, 1, 8).chunk(ranks)[rank]
    bare.router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
    torch.nn.init.constant_(bare.router.weight, 0.5)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), bare)
    (0 * bare.router(x)[0].sum()).backward()  # what is left is the z loss
    finalize_model_grads([model], torch.tensor(16))
    torch.save(float(bare.router.weight.main_grad.norm()), f"{folder}/norm-{ranks}")


with tempfile.TemporaryDirectory() as at:
    for ranks in (1, 2):
        torch.multiprocessing.start_processes(gradient, (ranks, at), ranks, start_method="fork")
    one, two = torch.load(f"{at}/norm-1"), torch.load(f"{at}/norm-2")
print(f"the gradient of the z loss is {one:.3g} on one rank and {two:.3g} with TP 2")
sys.exit(not two < 0.6 * one)
