"""An expert that no token reached has no gradient, so that AdamW skips it: it neither moves nor decays.

Each expert is an MLP by itself. If experts are one tensor, as from 5.0 on, all of it is stepped.
Run with an interpreter that has transformers 4.57.6. Exit code 0: the fault is there.
"""
import sys
import tempfile

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=1, num_experts=4,
    num_experts_per_tok=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
)
model = Qwen3MoeForCausalLM(config)
moe = model.model.layers[0].mlp
reached: set[int] = set()
moe.gate.register_forward_hook(lambda *told: reached.update(told[2].argmax(-1).tolist()))
text = torch.full((2, 8), 7)  # one token, so that one expert is reached
rows = [{"input_ids": each, "labels": each} for each in text]
before = [expert.up_proj.weight.clone() for expert in moe.experts]
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder, max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        learning_rate=0.1, weight_decay=0.5, per_device_train_batch_size=2, lr_scheduler_type="constant",
    )
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    trainer.train()
still = []
for number, (expert, was) in enumerate(zip(moe.experts, before, strict=True)):
    weight = expert.up_proj.weight
    moved = not torch.equal(weight, was)
    state = trainer.optimizer.state.get(weight)
    print(f"expert {number}: {'reached' if number in reached else 'idle'}, moved {moved}, has moments {bool(state)}")
    if number not in reached and not moved and not state:
        still.append(number)
sys.exit(not still)
