"""AdamW, Muon and gradient clipping, one tensor at a time, in the dtype of their inputs.

AdamW: arXiv 1711.05101, algorithm 2, in torch's form: decay precedes the step, times the learning rate.
Muon: kellerjordan.github.io/posts/muon, with the scale of Moonlight, arXiv 2502.16982, eq. 4.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def adamw(
    weight: Tensor,
    gradients: Sequence[Tensor],
    rates: Sequence[float],
    *,
    decay: float | Sequence[float],
    beta1: float,
    beta2: float,
    epsilon: float = 1e-8,
) -> list[Tensor]:
    """The weight after each step: gradient t (1-based) is applied with learning rate t, and decay t of several."""
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    found = []
    for step, (gradient, rate, shrink) in enumerate(zip(gradients, rates, _each(decay, rates), strict=True), start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        unbiased_first = first / (1 - beta1**step)
        unbiased_second = second / (1 - beta2**step)
        weight = weight - rate * shrink * weight - rate * unbiased_first / (unbiased_second.sqrt() + epsilon)
        found.append(weight)
    return found


def muon(
    weight: Tensor, gradients: Sequence[Tensor], rates: Sequence[float], *, decay: float | Sequence[float],
    momentum: float = 0.95, half: bool = False,
) -> list[Tensor]:  # fmt: skip
    """The weight after each step. Leading dims index matrices, each updated by itself.

    Args:
        half: whether the products of the iteration are rounded to bfloat16.
    """
    if weight.dim() > 2:
        parts = [
            muon(each, [gradient[i] for gradient in gradients], rates, decay=decay, momentum=momentum, half=half)
            for i, each in enumerate(weight)
        ]
        return [torch.stack(step) for step in zip(*parts, strict=True)]
    buffer, found = torch.zeros_like(weight), []
    size = 0.2 * math.sqrt(max(weight.shape))
    for gradient, rate, shrink in zip(gradients, rates, _each(decay, rates), strict=True):
        buffer = momentum * buffer + gradient
        turned = (rounded_newton_schulz if half else newton_schulz)(gradient + momentum * buffer)
        weight = weight - rate * shrink * weight - rate * size * turned
        found.append(weight)
    return found


def _each(decay: float | Sequence[float], rates: Sequence[float]) -> Sequence[float]:
    return decay if isinstance(decay, Sequence) else [decay] * len(rates)


def newton_schulz(matrix: Tensor) -> Tensor:
    """Five steps of X ← aX + b(XXᵀ)X + c(XXᵀ)²X from X = matrix / |matrix|, computed on singular values.

    The iteration is odd in X, so it acts only on the singular values: s ← a·s + b·s³ + c·s⁵.
    """
    if not bool(matrix.any()):
        return torch.zeros_like(matrix)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / (values.norm() + 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    turned: Tensor = left @ torch.diag(values) @ right
    return turned


def rounded_newton_schulz(matrix: Tensor) -> Tensor:
    """The same five steps as products of bfloat16 matrices, each rounded: what is off by as much is off by rounding."""
    if not bool(matrix.any()):
        return torch.zeros_like(matrix)
    x = (matrix / (matrix.norm() + 1e-7)).bfloat16()
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    turned: Tensor = x.T if matrix.shape[0] > matrix.shape[1] else x
    return turned.to(matrix.dtype)


def norm(gradients: Mapping[str, Tensor]) -> float:
    """The global gradient norm; each gradient counts once."""
    return math.sqrt(sum(float(each.double().square().sum()) for each in gradients.values()))


def clip(total: float, limit: float) -> float:
    """The factor on every gradient."""
    return min(1.0, limit / (total + 1e-6)) if limit > 0 else 1.0
