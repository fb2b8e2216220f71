"""Test inputs: functions of a seed and a name, equal on every machine, never symmetric or trivial, so no bug hides."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.spec import Arrays, Shape


def normal(name: str, shape: tuple[int, ...], *, scale: float = 1.0, seed: int = 0) -> Tensor:
    """float64 numbers around 0, a function of the name, the shape and the seed only."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def integers(name: str, shape: tuple[int, ...], high: int, *, seed: int = 0) -> Tensor:
    """int64 numbers in 0 … high - 1, a function of the name, the shape and the seed only."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.randint(high, shape, generator=generator)


def weights(shapes: Mapping[str, Shape], *, seed: int = 0) -> dict[str, Tensor]:
    """float64 weights for a block: matrices of about unit gain, norms around 1, no constant vector, no zero bias.

    A_log lies in 0 … log 16 and dt_bias gives time steps between 1e-3 and 1e-1, as mamba-ssm draws them.
    """
    return {name: _weight(name, shape.shape, seed) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    drawn = normal(name, shape, seed=seed)
    last = name.rsplit(".", 1)[-1]
    if last == "A_log":
        return torch.log(1 + 15 * torch.sigmoid(drawn))
    if last == "dt_bias":
        step = torch.exp(-4.6 + 1.2 * torch.tanh(drawn))
        return step + torch.log(-torch.expm1(-step))  # inverse of softplus
    if len(shape) == 1:
        return 0.1 * drawn if last.endswith("bias") else 1 + 0.2 * drawn
    if last == "W":  # a recurrence: identity plus noise
        return torch.eye(shape[-1], dtype=torch.float64) + 0.1 * drawn
    fan_in: float = shape[-1] ** 0.5
    return drawn / fan_in


def as_arrays(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Arrays:
    """Tensors as values in the dtype under test; integers stay what they are."""
    return {
        name: numerics.array(each.to(dtype) if each.is_floating_point() else each) for name, each in tensors.items()
    }


def documents(lengths: tuple[tuple[int, ...], ...]) -> Tensor:
    """(B, T) document numbers from the lengths of each row's documents: ((3, 2), (5,)) is 0 0 0 1 1 / 0 0 0 0 0."""
    rows = [torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths]
    return torch.stack(rows)
