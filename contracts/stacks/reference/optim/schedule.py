"""The learning rate and the weight decay of each optimizer step, as spec/training.py defines it."""

import math

from contracts.spec import Optim


def learning_rate(optim: Optim, step: int) -> float:
    """The rate of optimizer step `step`, counted from 1 over the whole run, resumed or not."""
    if step <= optim.warmup:
        return optim.lr * step / optim.warmup
    if optim.schedule == "constant":
        return optim.lr
    if step >= optim.steps:
        return optim.min_lr
    if optim.schedule == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * _progress(step, optim.warmup, optim.steps)))
    elif optim.schedule == "linear":
        left = 1 - _progress(step, optim.warmup, optim.steps)
    else:
        left = 1 - _progress(step, max(optim.warmup, optim.steps - cooldown(optim)), optim.steps)
    return optim.min_lr + (optim.lr - optim.min_lr) * left


def weight_decay(optim: Optim, step: int) -> float | None:
    """The weight decay of optimizer step `step`; None if the recipe has one for the whole run."""
    if optim.end_weight_decay is None:
        return None
    return optim.weight_decay + (optim.end_weight_decay - optim.weight_decay) * min(1.0, step / optim.steps)


def cooldown(optim: Optim) -> int:
    """Steps of the last phase of WSD: a fifth of the run (arXiv 2405.18392 finds 20 % enough)."""
    return max(1, optim.steps // 5)


def _progress(step: int, first: int, last: int) -> float:
    """0 up to step `first`, 1 at step `last`. `first < last` where it is asked."""
    return max(0.0, (step - first) / (last - first))
