"""Behind a step without a label its Trainer logs NaN for the rest of the run, though every weight is finite.

The mean of such a step is 0 / 0. Its Trainer resets the sum of losses by `tr_loss -= tr_loss`, and NaN - NaN is NaN. With
`logging_nan_inf_filter`, its default, it logs another number in place of a loss that is not finite.
Run with an interpreter that has transformers. Exit code 0: the fault is there.
"""
import math
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1,
)
model = LlamaForCausalLM(config)
rows = [{"input_ids": torch.arange(8) + at, "labels": torch.arange(8) + at} for at in range(4)]
rows[1]["labels"] = torch.full((8,), -100)  # the second step has no label
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder, max_steps=4, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=1, logging_steps=1, logging_nan_inf_filter=False,
    )
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    trainer._get_train_sampler = lambda *_: None  # in order
    trainer.train()
losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
finite = all(bool(each.isfinite().all()) for each in model.parameters())
print(f"losses {losses}, weights finite {finite}")
sys.exit(not (math.isfinite(losses[0]) and finite and all(map(math.isnan, losses[1:]))))
