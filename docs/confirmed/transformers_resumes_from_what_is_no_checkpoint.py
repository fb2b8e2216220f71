"""The Trainer resumes from an empty folder whose writer died, and keeps it in place of whole checkpoints.

Run with an interpreter that has transformers 5.23.0 and accelerate 1.15.0. Exit code 0: the fault is there.
"""
import os
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints


def trainer(folder, steps, dtype=torch.float32, **changed):
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1} | changed
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, use_cache=False)).to(dtype)
    given = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=1, use_cpu=True, report_to=[])
    return Trainer(model=model, args=given, train_dataset=[{"input_ids": torch.arange(8), "labels": torch.arange(8)}])


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 2).train()
    os.mkdir(f"{folder}/checkpoint-9")  # its writer died
    found = os.path.basename(get_last_checkpoint(folder))
    try:
        trainer(folder, 3).train(resume_from_checkpoint=True)
    except ValueError as error:
        print(error)
    rotate_checkpoints(folder, save_total_limit=1)  # what it calls behind each save
    left = os.listdir(folder)
print(f"beside checkpoint-1 and checkpoint-2 it resumes from {found}; save_total_limit=1 leaves {left}")
sys.exit((found, left) != ("checkpoint-9", ["checkpoint-9"]))
