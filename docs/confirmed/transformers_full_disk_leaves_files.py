"""A save of the Trainer that finds no room leaves half a checkpoint behind, and resumes from it.

Run with an interpreter that has transformers 5.23.0 and accelerate 1.15.0. Exit code 0: the fault is there.
"""
import os
import resource
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


def trainer(folder, steps, dtype=torch.float32, **changed):
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1} | changed
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, use_cache=False)).to(dtype)
    given = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=1, use_cpu=True, report_to=[])
    return Trainer(model=model, args=given, train_dataset=[{"input_ids": torch.arange(8), "labels": torch.arange(8)}])


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 1).train()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        trainer(folder, 2).train(resume_from_checkpoint=True)
    except Exception as error:
        words = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    last = get_last_checkpoint(folder)
    print(f"{words}; the last is {os.path.basename(last)} with {os.listdir(last)}")
sys.exit(not last.endswith("checkpoint-2"))
