"""A removal of an old checkpoint that is cut off makes what is left of it the newest, and a whole one goes in its place.

Run with an interpreter that has transformers 5.23.0 and accelerate 1.15.0. Exit code 0: the fault is there.
"""
import os
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def trainer(folder, steps):
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    given = TrainingArguments(
        output_dir=folder, max_steps=steps, save_steps=1, save_total_limit=2, use_cpu=True, report_to=[]
    )
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}]
    return Trainer(model=LlamaForCausalLM(config), args=given, train_dataset=data)


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 2).train()
    for step, hours in ((1, 2), (2, 1)):  # saved an hour apart, as in a long run
        path = f"{folder}/checkpoint-{step}"
        os.utime(path, (os.stat(path).st_mtime - 3600 * hours,) * 2)
    os.unlink(f"{folder}/checkpoint-1/trainer_state.json")  # rmtree of checkpoint-1 was killed here
    trainer(folder, 3).train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    left = sorted(os.listdir(folder))
    torn = not os.path.exists(f"{folder}/checkpoint-1/trainer_state.json")
print(f"of checkpoint-2, checkpoint-3 and the remains of checkpoint-1, save_total_limit=2 keeps {left}")
sys.exit(not (torn and left == ["checkpoint-1", "checkpoint-3"]))
