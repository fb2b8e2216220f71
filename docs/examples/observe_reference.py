"""The reference's own trainer, on a hybrid of attention, experts, Mamba and M2RNN. It knows nothing of observing.

    python observe_reference.py --steps 2
    torchrun --nproc-per-node 2 observe_reference.py --tp 2
    torchrun --nproc-per-node 4 observe_reference.py --ep 2 --fsdp
"""

import argparse
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from contracts.spec import Batch, Degrees, Execution
from contracts.spec.presets import PRESETS
from contracts.stacks.reference.answers.training import TrainingAnswers
from contracts.stacks.reference.model.parts import PARTS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--fsdp", action="store_true")
    for axis in ("pp", "tp", "ep"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)

    recipe = replace(PRESETS["tiny-nam56r"], pattern="AEMR", depth=4, seq_length=32, batch=Batch(micro=2, total=4))
    execution = Execution(
        degrees=Degrees(pp=args.pp, tp=args.tp, ep=args.ep), world=world, fsdp=args.fsdp, precision="float32",
        microbatches=args.microbatches,
    )  # fmt: skip
    trainer = TrainingAnswers().trainer_of(execution)(recipe, execution, PARTS)
    for _ in range(args.steps):
        done = trainer.next()
        if rank == 0:
            print(f"step {done.number}: loss {done.losses['lm']:.4f}")  # noqa: T201
    trainer.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
