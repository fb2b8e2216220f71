"""A small model in torch's pipelines, with data-parallel copies of each stage. It knows nothing of rankproof.

    python observe_pipeline.py --steps 2
    torchrun --nproc-per-node 2 observe_pipeline.py --schedule 1F1B
    torchrun --nproc-per-node 4 observe_pipeline.py --schedule Interleaved1F1B --stages 2
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, vocab: int = 97, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleDict({str(number): Block(width) for number in range(depth)})
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def stage_of(net: Net, number: int, stages: int) -> Net:
    """What is left of the model on one stage; parts keep their names."""
    mine = range(number * len(net.layers) // stages, (number + 1) * len(net.layers) // stages)
    for name in list(net.layers):
        if int(name) not in mine:
            del net.layers[name]
    if number > 0:
        net.embed = None
    if number < stages - 1:
        net.norm = net.head = None
    return net


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--pipeline", type=int, default=2, help="ranks of one pipeline")
    parser.add_argument("--stages", type=int, default=1, help="stages of one rank")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    ranks, copy, copies, parts = 1, 0, 1, []
    if world > 1:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (world // args.pipeline, args.pipeline), mesh_dim_names=("dp", "pp"))
        ranks, copy, copies = args.pipeline, rank // args.pipeline, world // args.pipeline
        numbers = [rank % ranks + ranks * each for each in range(args.stages)]
        for number in numbers:
            torch.manual_seed(1337)
            part = stage_of(Net(), number, ranks * args.stages)
            part = DistributedDataParallel(part, process_group=mesh.get_group("dp")) if copies > 1 else part
            parts.append(part)
        group, total = mesh.get_group("pp"), ranks * args.stages
        stages = [PipelineStage(part, number, total, torch.device("cpu"), group=group)
                  for part, number in zip(parts, numbers, strict=True)]  # fmt: skip
        schedule = get_schedule_class(args.schedule)(stages if args.stages > 1 else stages[0], 4, loss_fn=loss_of)
    else:
        torch.manual_seed(1337)
        parts = [Net()]
    parameters = [each for part in parts for each in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    data = torch.Generator().manual_seed(0)
    for _ in range(args.steps):
        text = torch.randint(97, (8, 17), generator=data)[copy::copies]
        ids, targets = text[:, :-1], text[:, 1:]
        optimizer.zero_grad()
        if world > 1:
            given = (ids,) if rank % ranks == 0 else ()
            schedule.step(*given, target=targets if rank % ranks == ranks - 1 else None)
        else:
            loss_of(parts[0](ids), targets).backward()
        optimizer.step()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
