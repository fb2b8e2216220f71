"""transformers' Trainer on a tiny model drawn from its configuration. It knows nothing of rankproof, and loads nothing.

python train_transformers.py --steps 3
torchrun --nproc-per-node 2 train_transformers.py --steps 3
"""

import argparse
import os
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["llama", "qwen3_moe"], default="llama")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="rows of all ranks together")
    parser.add_argument("--accumulate", type=int, default=1, help="microbatches of a step")
    parser.add_argument("--out", help="folder for checkpoints, kept; one for each step")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--tied", action="store_true", help="one weight embeds and projects")
    parser.add_argument("--evaluate", action="store_true", help="after each step")
    parser.add_argument("--dropout", type=float, default=0.0, help="of attention")
    parser.add_argument("--resume", action="store_true", help="from the checkpoint of step 2 in --out")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))

    torch.manual_seed(1337)
    sizes = {**SIZES, "attention_dropout": args.dropout, "tie_word_embeddings": args.tied}
    if args.model == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts))
    text = torch.randint(97, (64, 32), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": each, "labels": each} for each in text]
    with tempfile.TemporaryDirectory() as folder:
        given = TrainingArguments(
            output_dir=args.out or folder, max_steps=args.steps, use_cpu=True, report_to=[], disable_tqdm=True, seed=7,
            per_device_train_batch_size=args.batch // world // args.accumulate, lr_scheduler_type="constant",
            gradient_accumulation_steps=args.accumulate, save_strategy="steps" if args.out else "no", save_steps=1,
            logging_steps=1, weight_decay=0.1, gradient_checkpointing=args.recompute, dataloader_drop_last=True,
            eval_strategy="steps" if args.evaluate else "no", eval_steps=1,
        )  # fmt: skip
        checkpoint = f"{args.out}/checkpoint-2" if args.resume else None
        Trainer(model=model, args=given, train_dataset=rows, eval_dataset=rows[:16]).train(
            resume_from_checkpoint=checkpoint
        )


if __name__ == "__main__":
    main()
