"""Stacks that hold more than they planned, and budgets that miscount the model."""

from dataclasses import replace

import torch
from torch.utils.checkpoint import checkpoint

from contracts.law._bugs.numeric import Attention, Model, Reference, Trainer, broken


@broken(Trainer, "next", "MEM-01g[float32]: bytes are held, predicted", "MEM-01f[float32]: bytes are held, predicted")
def keeps_masters_twice(former, self, *args):
    """A second float32 copy of every weight is kept, which the budget does not count."""
    self.kept = [each.detach().clone() for each in self.model.parameters()]
    return former(self, *args)


@broken(Trainer, "next", "MEM-01g[bfloat16]: bytes more than step", "MEM-01f[bfloat16]: bytes more than step")
def logs_tensors(former, self, *args):
    """A log keeps tensors instead of numbers, and grows at every step."""
    done = former(self, *args)
    seen = [each.grad.clone() for each in self.model.layers.parameters() if each.grad is not None]
    self.log = getattr(self, "log", []) + seen[:4]
    return done


@broken(Trainer, "next", "MEM-03b[bfloat16]: the gap grew by")
def asks_for_more_each_time(former, self, *args):
    """A buffer that is made anew for every step is a little larger each time, so that no freed block fits it."""
    self.larger = getattr(self, "larger", 1 << 30) + (1 << 26)
    torch.empty(self.larger, dtype=torch.uint8, device=self.execution.device)
    return former(self, *args)


@broken(
    Reference,
    "step_memory",
    "MEM-03b[bfloat16]: 15 of 16 steps are reported",
    "MEM-01f[float32]: 2 of 3 steps are reported",
    "MEM-01i[mlp]: 1 of 2 steps are reported with recompute none",
    "MEM-02o[attention]: 1 of 2 steps are reported",
)
def tells_of_no_first_step(step_memory, self, recipe, mode, device, steps):
    """The first step is a warm-up, and its memory is not reported."""
    return step_memory(self, recipe, mode, device, steps)[1:]


@broken(
    Model,
    "run",
    "MEM-01i[experts]: bytes on top of its state with recompute",
    "MEM-01i[mamba]: bytes on top of its state with recompute",
    bugs=("ACK-07",),
)
def recomputes_one_class_alone(run, self, layer, x, pack):
    """Layers are wrapped by mixer class, and the list of classes was made for another model."""
    found = isinstance(layer.mixer, Attention)
    return run(self, layer, x, pack) if found else layer(x, pack)


@broken(Model, "run", "MEM-01i[attention]: bytes on top of its state with recompute")
def moves_instead_of_recomputing(run, self, layer, x, pack):
    """Activations are offloaded to the host and counted as gone, but on a CPU run the host is the device."""

    def looked_at(x, pack):
        with torch.autograd.graph.save_on_cpu():
            return layer(x, pack)

    return looked_at(x, pack) if self.recompute else run(self, layer, x, pack)


@broken(
    Model,
    "run",
    "MEM-01i[recurrent]: bytes on top of its state with recompute",
    "MEM-02o[mamba]: the second step peaks at",
)
def recomputes_unasked(run, self, layer, x, pack):
    """Everything is recomputed whatever the recipe says, and each step takes a third longer."""
    return checkpoint(layer, x, pack, use_reentrant=False)


@broken(
    Reference,
    "budget",
    "MEM-02m[bfloat16]: the budget of eager kernels says",
    "MEM-02o[bfloat16]: the budget of eager kernels says",
)
def plans_with_flash_attention(budget, self, recipe, spread, card):
    """Every plan counts 34 bytes for a layer, whatever computes it."""
    return budget(self, recipe, replace(spread, kernels="fused"), card)


@broken(Reference, "built", "MEM-01a[nam56r_h200_mla_mtp1_bf16_v1]: bytes of weights, the model")
def builds_no_depths(former, self, recipe, mode):
    """The budget counts the prediction head, and the model leaves it out."""
    built = former(self, recipe, mode)
    rows = tuple(row for row in built.parameters if "mtp" not in row.name)
    return replace(built, parameters=rows)


@broken(Reference, "built", "MEM-01a[tiny-nam52r]: bytes of weights, the model")
def pads_the_experts(built, self, recipe, mode):
    """12 experts are padded for the kernel, in memory that no budget counts."""
    moe = recipe.moe
    even = recipe if moe is None else replace(recipe, moe=replace(moe, experts=moe.experts + moe.experts % 16))
    return built(self, even, mode)
