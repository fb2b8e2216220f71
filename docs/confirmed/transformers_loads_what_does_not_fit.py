"""The Trainer casts tensors to another dtype, loads some before it refuses others, and names no damaged file.

Run with an interpreter that has transformers 5.23.0 and accelerate 1.15.0. Exit code 0: the fault is there.
"""
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def trainer(folder, steps, dtype=torch.float32, **changed):
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1} | changed
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, use_cache=False)).to(dtype)
    given = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=1, use_cpu=True, report_to=[])
    return Trainer(model=model, args=given, train_dataset=[{"input_ids": torch.arange(8), "labels": torch.arange(8)}])


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 1).train()
    narrow = trainer(folder, 1, torch.bfloat16)
    narrow.train(resume_from_checkpoint=True)
    wide = trainer(folder, 1, intermediate_size=12)
    before = wide.model.lm_head.weight.detach().clone()
    try:
        wide.train(resume_from_checkpoint=True)
    except RuntimeError as error:
        half = not torch.equal(before, wide.model.lm_head.weight)
        print(f"{str(error).splitlines()[0]}, and its head was overwritten: {half}")
    open(f"{folder}/checkpoint-1/model.safetensors", "wb").close()
    try:
        trainer(folder, 1).train(resume_from_checkpoint=True)
    except Exception as error:
        words = str(error)
print(f"float32 was loaded into {narrow.model.dtype}; an empty file: {words}")
sys.exit(not half or "safetensors" in words)
