"""The bias by which DeepSeek-V3's router chooses experts is a buffer that its Trainer never moves, however unequal the load.
Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys
import tempfile
from collections import Counter

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = DeepseekV3Config(
    vocab_size=32, hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=1,
    first_k_dense_replace=0, n_routed_experts=4, num_experts_per_tok=1, n_shared_experts=1, n_group=1, topk_group=1,
    num_attention_heads=2, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8,
    v_head_dim=8,
)  # fmt: skip
model = DeepseekV3ForCausalLM(config)
moe = model.model.layers[0].mlp
load: Counter[int] = Counter()
moe.experts.register_forward_pre_hook(lambda _, given: load.update(given[1].flatten().tolist()))
text = torch.full((2, 8), 7)  # one token, so that one expert is reached
rows = [{"input_ids": each, "labels": each} for each in text]
before = moe.gate.e_score_correction_bias.clone()
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder, max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        learning_rate=0.01, per_device_train_batch_size=2,
    )  # fmt: skip
    Trainer(model=model, args=args, train_dataset=rows).train()
after = moe.gate.e_score_correction_bias
print(f"tokens of each expert in three steps: {dict(load)}; the bias was {before.tolist()} and is {after.tolist()}")
sys.exit(not (len(load) < 4 and torch.equal(before, after)))
