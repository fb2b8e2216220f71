"""The Trainer resumes Qwen3-MoE with freshly drawn experts, and Granite 4 with freshly drawn routers too.

They are saved under the names of released checkpoints and loaded by those of the modules.
Run with an interpreter that has transformers 5.23.0 and accelerate 1.15.0. Exit code 0: the fault is there.
"""
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

COMMON = dict(vocab_size=32, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_experts_per_tok=2,
              intermediate_size=8, use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)  # fmt: skip
QWEN = dict(num_hidden_layers=1, moe_intermediate_size=8, num_experts=4, head_dim=8)
GRANITE = dict(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], shared_intermediate_size=8,
               num_local_experts=4, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1)  # fmt: skip
ROWS = [{"input_ids": torch.arange(8) + one, "labels": torch.arange(8) + one} for one in range(8)]


class Watch(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **_):
        self.weights = {name: each.detach().clone() for name, each in model.named_parameters()}


found = []
for config in (AutoConfig.for_model("qwen3_moe", **COMMON, **QWEN), AutoConfig.for_model("granitemoehybrid", **COMMON, **GRANITE)):
    with tempfile.TemporaryDirectory() as folder:
        for seed, steps, checkpoint in ((1, 2, None), (2, 3, f"{folder}/checkpoint-2")):
            set_seed(seed)
            given = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=2, use_cpu=True, report_to=[])
            watch, model = Watch(), AutoModelForCausalLM.from_config(config)
            Trainer(model, given, train_dataset=ROWS, callbacks=[watch]).train(resume_from_checkpoint=checkpoint)
            if checkpoint is None:
                saved = {name: each.detach().clone() for name, each in model.named_parameters()}
    lost = sorted(name for name, each in saved.items() if not torch.equal(each, watch.weights[name]))
    print(f"{config.model_type}: {len(lost)} of {len(saved)} parameters are not those that were saved: {', '.join(lost)}")
    found.append(bool(lost) and all("experts" in name or "router" in name for name in lost))
sys.exit(not all(found))
