"""The Trainer resumes Qwen3-MoE with freshly drawn experts: it saves them one by one and loads them fused.

Run with an interpreter that has transformers 5.23.0 and accelerate 1.15.0. Exit code 0: the fault is there.
"""
import sys
import tempfile

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

config = Qwen3MoeConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=1, num_experts=4,
    num_experts_per_tok=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, use_cache=False,
)
rows = [{"input_ids": torch.arange(8) + one, "labels": torch.arange(8) + one} for one in range(8)]
seen: dict[str, dict[str, torch.Tensor]] = {}


class Watch(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **_):
        seen["resumed"] = {name: each.detach().clone() for name, each in model.named_parameters()}


def trainer(seed, steps, folder):
    set_seed(seed)
    given = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=2, use_cpu=True, report_to=[])
    return Trainer(model=Qwen3MoeForCausalLM(config), args=given, train_dataset=rows, callbacks=[Watch()])


with tempfile.TemporaryDirectory() as folder:
    first = trainer(1, 2, folder)
    first.train()
    saved = {name: each.detach().clone() for name, each in first.model.named_parameters()}
    trainer(2, 3, folder).train(resume_from_checkpoint=f"{folder}/checkpoint-2")
lost = sorted(name for name, each in saved.items() if not torch.equal(each, seen["resumed"][name]))
print(f"{len(lost)} of {len(saved)} parameters are not those that were saved: {', '.join(lost)}")
sys.exit(not (lost and all(".experts." in name for name in lost)))
