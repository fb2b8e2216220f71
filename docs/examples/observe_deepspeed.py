"""A small classifier under DeepSpeed's ZeRO, stage 1, 2 or 3. It knows nothing of rankproof.

    deepspeed observe_deepspeed.py, or on a CPU: DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 observe_deepspeed.py
"""

import argparse

import deepspeed
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="rows of all ranks together")
    args = parser.parse_args()
    deepspeed.init_distributed()
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(1337)
    model = nn.Sequential(nn.Linear(16, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer,
        config={"train_micro_batch_size_per_gpu": args.batch // world, "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": args.stage}},
    )  # fmt: skip
    data = torch.Generator().manual_seed(0)
    for _ in range(args.steps):
        rows = torch.randn(args.batch, 16, generator=data)[rank::world]
        labels = torch.randint(7, (args.batch,), generator=data)[rank::world]
        loss = nn.functional.cross_entropy(engine(rows), labels)
        engine.backward(loss)
        engine.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
