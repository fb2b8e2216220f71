"""Its loss is divided by the labels of all ranks, and its DDP takes a mean of the gradients on top: half is lost on two
ranks. It also reduces after every microbatch, and not once a step.
torchrun --standalone --nproc-per-node 2 docs/confirmed/torchtitan_ddp_divides_twice.py      # torchtitan 0.2.2, a CPU
"""
# ruff: noqa: E402, I001
import inspect
import sys
from types import ModuleType

import torch
import torch.distributed as dist

kernels = sys.modules["torchtitan.models.moe.kernels"] = ModuleType("kernels")  # needs triton
kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
from torch.distributed.device_mesh import init_device_mesh
from torchtitan import train
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.models.llama3 import Transformer, TransformerModelArgs
from torchtitan.models.llama3.infra.parallelize import apply_ddp

def gradient(mesh, rows) -> torch.Tensor:
    torch.manual_seed(0)
    model = Transformer(TransformerModelArgs(dim=32, n_layers=1, n_heads=2, vocab_size=64, max_seq_len=8))
    with torch.no_grad():
        model.init_weights()
    if mesh is not None:
        apply_ddp(model, mesh, enable_compile=False)
    loss = cross_entropy_loss(model(rows[:, :-1]), rows[:, 1:]) / LABELS  # as Trainer.forward_backward_step has it
    loss.backward()
    return model.output.weight.grad

dist.init_process_group("gloo")
rank, text, every = dist.get_rank(), torch.randint(64, (4, 9), generator=torch.Generator().manual_seed(1)), [None, None]
LABELS = text[:, 1:].numel()  # of all ranks: Trainer.train_step adds them up
alone, many = gradient(None, text), gradient(init_device_mesh("cpu", (2,)), text[2 * rank : 2 * rank + 2])
dist.all_gather_object(every, many)
early = torch.equal(*every) and "set_requires_gradient_sync" not in inspect.getsource(train)
share = (many.norm() / alone.norm()).item()
print(f"the gradient of the output projection is {share:.3f} of that on one rank; reduced after one microbatch: {early}")
sys.exit(not (abs(share - 0.5) < 1e-4 and early))
