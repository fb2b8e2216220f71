"""A loop of one's own over accelerate: a shuffled loader, accumulation, clipping, a schedule, an evaluation. It knows
nothing of rankproof, and loads nothing.

    python observe_accelerate.py --steps 3
    torchrun --nproc-per-node 2 observe_accelerate.py --steps 3
"""

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="rows of all ranks together in a microbatch")
    parser.add_argument("--accumulate", type=int, default=2, help="microbatches of a step")
    args = parser.parse_args()
    loading = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate, dataloader_config=loading)
    set_seed(7)

    model = nn.Sequential(nn.Embedding(97, 32), nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 97))
    text = torch.randint(97, (128, 17), generator=torch.Generator().manual_seed(0))
    rows = DataLoader(TensorDataset(text[:96]), batch_size=args.batch // accelerator.num_processes, shuffle=True)
    held_out = DataLoader(TensorDataset(text[96:]), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.steps * 10)
    # a schedule that is prepared too steps once for each rank; this one counts steps
    model, optimizer, rows, held_out = accelerator.prepare(model, optimizer, rows, held_out)

    def loss_of(text: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    step = 0
    while step < args.steps:
        for (each,) in rows:
            with accelerator.accumulate(model):
                loss = loss_of(each)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            schedule.step()
            step += 1
            model.eval()
            with torch.no_grad():
                losses = accelerator.gather_for_metrics(torch.stack([loss_of(each) for (each,) in held_out]))
            model.train()
            accelerator.print(f"step {step}: loss {loss.item():.4f}, held out {losses.mean().item():.4f}")
            if step == args.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
