"""Trainer seeds every rank alike, so that data-parallel ranks drop the same elements of their different rows.

It starts itself on two ranks, on a CPU. Exit code 0: the fault is there.
"""
import os, sys, tempfile

if "RANK" not in os.environ:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__)
    os.execv(sys.executable, (sys.executable, *words))
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

drop, masks, rows = torch.nn.functional.dropout, [], []


def dropped(x, p=0.5, training=True, inplace=False):
    found = drop(x, p, training, inplace)
    if training and p:
        masks.append((found == 0) & (x != 0))
    return found


torch.nn.functional.dropout = dropped
text = torch.randint(31, (16, 8), generator=torch.Generator().manual_seed(0))
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    attention_dropout=0.5, attn_implementation="eager"))
model.model.embed_tokens.register_forward_hook(lambda module, given, _: rows.append(given[0].clone()))
with tempfile.TemporaryDirectory() as folder:
    Trainer(model, TrainingArguments(folder, max_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to=[],
                                     disable_tqdm=True, save_strategy="no"),
            train_dataset=[{"input_ids": row, "labels": row} for row in text]).train()
every = [None] * dist.get_world_size()
dist.all_gather_object(every, (rows[0], masks[0]))
(rows_0, mask_0), (rows_1, mask_1) = every
print(f"ranks 0 and 1: equal rows {torch.equal(rows_0, rows_1)}, equal dropout {torch.equal(mask_0, mask_1)}, "
      f"{int(mask_0.sum())} and {int(mask_1.sum())} of {mask_0.numel()} dropped")
sys.exit(not (torch.equal(mask_0, mask_1) and bool(mask_0.any()) and not torch.equal(rows_0, rows_1)))
