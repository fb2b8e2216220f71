"""Initial weights: a function of the recipe's seed, the parameter's name and its shape only.

Every tensor is drawn whole, in float32, on the CPU, by a generator of its own: neither the order in which modules are
made, nor the layout, the device or the dtype can change it, and no two tensors share numbers. A rank that holds a part
draws the whole and keeps its part.

Matrices: normal, 0.02, and 0.02 / sqrt(2 · depth) where they write to the residual stream (GPT-2). Convolutions:
uniform over ±1/sqrt(width), as torch.nn.Conv1d. A_log, dt_bias, D: as mamba-ssm draws them.
"""

import hashlib
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from contracts.spec import Recipe
from contracts.stacks.kit.roles import role_of
from contracts.stacks.reference.model.blocks.hyper_connections import initial_bias

STD = 0.02
OUTPUTS = frozenset({"wo", "w2"})  # matrices that write to the residual stream
DECAY = (1.0, 16.0)  # of exp(A_log), 1 / time
STEP = (1e-3, 1e-1)  # of softplus(dt_bias), time


class SkipInit(TorchFunctionMode):
    """Within it modules are built without the numbers that `Initializer` replaces: nothing is drawn from the process's
    generator, and nothing is computed for the meta device.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {}).get("tensor")
        return func(*args, **(kwargs or {}))


class Initializer:
    """The initial weights of a recipe's model."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def fill(self, model: nn.Module, given: Collection[str] = ()) -> None:
        """Give every parameter and buffer of a model its initial value, in place; from the meta device on the CPU.

        Those that are `given` get their memory and are left to whoever gives them.
        """
        for owner in model.modules():
            own = (*owner.parameters(recurse=False), *owner.buffers(recurse=False))
            if any(each.is_meta for each in own):
                owner.to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            held = [*model.named_parameters(), *model.named_buffers()]
            for name, each in (pair for pair in held if pair[0] not in given):
                each.copy_(self.tensor(name, tuple(each.shape)))

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The whole initial tensor of a parameter or buffer, float32, on the CPU."""
        if "fp8" in name.split("."):
            return torch.ones(shape) if name.endswith(".scale") else torch.zeros(shape)  # and an empty history
        role, (owner, last) = role_of(name), name.rsplit(".", 2)[-2:]
        if role == "norm":
            return torch.ones(shape)
        if role == "ssm":
            return self.state_space(name, last, shape)
        if role == "mixing":
            return self.mixing(name, last, shape)
        if role == "conv" or (role == "bias" and owner.startswith("conv")):
            return self.uniform(name, shape, -0.5, 0.5)  # a width of 4: 1 / sqrt(4)
        if role == "bias":
            return self.bias(last, shape)
        if last == "W":  # a recurrence begins as the identity (arXiv 2603.14360)
            return torch.eye(shape[-1]).expand(shape).clone()
        return self.matrix(name, shape, self.std(owner, last))

    def generator(self, name: str) -> torch.Generator:
        """Seeded by the recipe's seed and the name; not by hash(), which differs from process to process."""
        digest = hashlib.sha256(f"{self.recipe.seed}/{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def matrix(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        return torch.randn(shape, generator=self.generator(name)) * std

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        return torch.rand(shape, generator=self.generator(name)) * (high - low) + low

    def std(self, owner: str, last: str) -> float:
        return STD / math.sqrt(2 * self.recipe.depth) if {owner, last} & OUTPUTS else STD

    def state_space(self, name: str, last: str, shape: tuple[int, ...]) -> Tensor:
        if last == "D":
            return torch.ones(shape)
        if last == "A_log":
            return self.uniform(name, shape, *DECAY).log()
        low, high = (math.log(bound) for bound in STEP)
        step = self.uniform(name, shape, low, high).exp()
        return step + torch.log(-torch.expm1(-step))  # the inverse of softplus

    def bias(self, last: str, shape: tuple[int, ...]) -> Tensor:
        """Zero, but for those that Mamba-3 adds to B and C, which begin at one (arXiv 2603.15569)."""
        return torch.ones(shape) if last in ("b_bias", "c_bias") else torch.zeros(shape)

    def mixing(self, name: str, last: str, shape: tuple[int, ...]) -> Tensor:
        if last == "weight":
            return self.matrix(name, shape, STD)
        if last == "alpha":
            return torch.full(shape, 0.01)  # arXiv 2512.24880, table 5
        assert self.recipe.mhc is not None
        return initial_bias(self.recipe.mhc.streams)
