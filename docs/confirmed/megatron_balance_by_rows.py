"""With calculate_per_token_loss, Megatron-Core 0.17 and 0.18 weigh seq_aux_loss by the tokens of one row of a microbatch.

The same row twice has the mean loss and the number of labels a position of the row only, and half of its gradient, so
the loss weighs less the more rows are in a microbatch (PR 5798). Exit code 0: the fault is there.
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
    moe_router_load_balancing_type="seq_aux_loss", use_cpu_initialization=True, calculate_per_token_loss=True)
bare = Routed(config)
bare.router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
model, row, norms = DistributedDataParallel(config, DistributedDataParallelConfig(), bare), torch.randn(16, 1, 8), {}
for rows in (1, 2):
    model.zero_grad_buffer()
    (0 * model(row.repeat(1, rows, 1)).sum()).backward()  # what is left is the balance loss
    finalize_model_grads([model], torch.tensor(16 * rows))
    norms[rows] = float(bare.router.weight.main_grad.norm())
torch.distributed.destroy_process_group()
print(f"the gradient of a balance loss is {norms[1]:.3g} for a row, and {norms[2]:.3g} for the same row twice")
sys.exit(not norms[2] < 0.6 * norms[1])
