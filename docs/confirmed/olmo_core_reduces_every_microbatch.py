"""Under DDP the gradients are reduced in each microbatch, not in the last one only.
OLMO_SHARED_FS=1 torchrun --standalone --nproc-per-node 2 docs/confirmed/olmo_core_reduces_every_microbatch.py      # OLMo-core 3.0.0
"""
import sys

import torch
import torch.distributed as dist
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from torch.profiler import profile

class Silent:  # in place of the Trainer, to which a train module reports its metrics
    def __getattr__(self, name):
        return lambda *given, **named: None

dist.init_process_group("gloo")
module = TransformerTrainModuleConfig(
    rank_microbatch_size=8, max_sequence_length=8, optim=AdamWConfig(),
    dp_config=TransformerDataParallelConfig(name=DataParallelType.ddp),
).build(TransformerConfig.llama_like(d_model=32, vocab_size=64, n_layers=1, n_heads=2).build(init_device="meta"))
module._attach_trainer(Silent())
counts = []
for rows in (1, 4):
    with profile() as seen:
        module.train_batch({"input_ids": torch.ones(rows, 8, dtype=torch.int64), "labels": torch.ones(rows, 8).long()})
    counts.append(sum(each.count for each in seen.key_averages() if "all_reduce" in each.key and "gloo" in each.key))
print(f"all-reduces of gradients in a step of 1 microbatch: {counts[0]}, of 4: {counts[1]}")
sys.exit(not counts[1] > counts[0] > 0)
