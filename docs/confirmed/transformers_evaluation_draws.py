"""An evaluation of Trainer draws from torch's generator: with dropout, a run that evaluates is another run.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys, tempfile

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

ROWS = [{"input_ids": [(7 * row + place) % 31 for place in range(8)]} for row in range(12)]
ROWS = [{**row, "labels": row["input_ids"]} for row in ROWS]


def losses(evaluates, dropout):
    set_seed(3)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=dropout))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, TrainingArguments(
            folder, max_steps=4, per_device_train_batch_size=2, use_cpu=True, seed=3, logging_steps=1, report_to=[],
            disable_tqdm=True, save_strategy="no", eval_strategy="steps" if evaluates else "no", eval_steps=1),
            train_dataset=ROWS, eval_dataset=ROWS[:4])
        trainer.train()
    return [round(line["loss"], 6) for line in trainer.state.log_history if "loss" in line]


found = {dropout: (losses(False, dropout), losses(True, dropout)) for dropout in (0.0, 0.5)}
for dropout, (without, with_) in found.items():
    print(f"dropout {dropout}: losses {without} without an evaluation after each step, {with_} with one")
sys.exit(not (found[0.0][0] == found[0.0][1] and found[0.5][0][0] == found[0.5][1][0] and found[0.5][0] != found[0.5][1]))
