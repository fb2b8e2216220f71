"""DDP beside tensor parallelism: the optimizer holds tensors that the model no longer has after a pass. Nothing moves.
OLMO_SHARED_FS=1 torchrun --standalone --nproc-per-node 2 docs/confirmed/olmo_core_ddp_beside_tp_trains_nothing.py      # OLMo-core 3.0.0
"""
import sys

import torch
import torch.distributed as dist
from olmo_core.distributed import parallel
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import (
    TransformerDataParallelConfig, TransformerTensorParallelConfig, TransformerTrainModuleConfig,
)

class Norm:  # in place of the Trainer, to which a train module reports its metrics
    value = None

    def record_metric(self, name, value, **named):
        self.value = value if "grad norm" in name else self.value

    def record_ce_loss(self, value, **named): ...

def step(kind):
    parallel._WORLD_MESH = None  # a process makes one, and there are two runs here
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=16, max_sequence_length=8, optim=AdamWConfig(lr=0.1), max_grad_norm=1.0,
        dp_config=TransformerDataParallelConfig(name=kind), tp_config=TransformerTensorParallelConfig(degree=2),
    ).build(TransformerConfig.llama_like(d_model=32, vocab_size=64, n_layers=1, n_heads=2).build(init_device="meta"))
    module._attach_trainer(Norm())
    held = [each for group in module.optim.param_groups for each in group["params"]]
    before = [each.to_local().detach().clone() for each in held]
    module.train_batch({"input_ids": torch.arange(16).view(2, 8), "labels": torch.arange(1, 17).view(2, 8)})
    module.optim_step()
    return float(module.trainer.value), sum(not torch.equal(a, b.to_local()) for a, b in zip(before, held, strict=True))

dist.init_process_group("gloo")
(norm, moved), (lost, still) = step(DataParallelType.fsdp), step(DataParallelType.ddp)
print(f"FSDP2: norm {norm:.3f}, {moved} tensors move. DDP: norm {lost:.3f}, {still} tensors move")
sys.exit(bool(lost or still or not moved))
