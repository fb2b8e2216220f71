"""Each rank divides its loss by its own labels, and FSDP takes the mean over ranks: rows with few labels weigh more.
OLMO_SHARED_FS=1 torchrun --standalone --nproc-per-node 2 docs/confirmed/olmo_core_divides_by_its_own_labels.py      # OLMo-core 3.0.0
"""
import sys

import torch
import torch.distributed as dist
from olmo_core.distributed import parallel
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

class Silent:  # in place of the Trainer, to which a train module reports its metrics
    def __getattr__(self, name):
        return lambda *given, **named: None

def gradient(dp, rows, labels):
    parallel._WORLD_MESH = None  # a process makes one, and there are two runs here
    model = TransformerConfig.llama_like(d_model=32, vocab_size=64, n_layers=1, n_heads=2).build(init_device="meta")
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=rows.numel(), max_sequence_length=8, optim=AdamWConfig(), dp_config=dp
    ).build(model, device=torch.device("cpu"))
    module._attach_trainer(Silent())
    module.train_batch({"input_ids": rows, "labels": labels})
    return module.model.lm_head.w_out.weight.grad.full_tensor()

dist.init_process_group("gloo")
rank, text = dist.get_rank(), torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
labels = text[:, 1:].clone()
labels[0, 1:] = -100  # one label in the first row, eight in the second
dp, mine = TransformerDataParallelConfig(name=DataParallelType.fsdp), slice(rank, rank + 1)
many, alone = gradient(dp, text[mine, :-1], labels[mine]), gradient(dp, text[:, :-1], labels)  # both rows on each rank
off = ((many - alone).norm() / alone.norm()).item()
print(f"a row with 1 label on rank 0, one with 8 on rank 1: the gradient is off by {off:.0%} of that of both rows")
sys.exit(off < 0.1)
