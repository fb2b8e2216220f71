"""With calculate_per_token_loss, what balance loss and z loss add to a gradient grows where few positions have a label.

The router multiplies it by positions, finalize_model_grads divides by labels. Exit code 0: the fault is there.
"""
import sys

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter


class Routed(MegatronModule):
    def forward(self, x):
        return self.router(x)[0]


torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_aux_loss_coeff=0.01,
    use_cpu_initialization=True, calculate_per_token_loss=True)
bare = Routed(config)
bare.router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
model, x, norms = DistributedDataParallel(config, DistributedDataParallelConfig(), bare), torch.randn(16, 1, 8), {}
for labels in (16, 2):
    model.zero_grad_buffer()
    (0 * model(x).sum()).backward()  # what is left is the balance loss
    finalize_model_grads([model], torch.tensor(labels))
    norms[labels] = float(bare.router.weight.main_grad.norm())
torch.distributed.destroy_process_group()
print(f"of 16 positions 16 have a label: the router's gradient is {norms[16]:.3g}; 2 have one: {norms[2]:.3g}")
sys.exit(not norms[2] > 7 * norms[16])
