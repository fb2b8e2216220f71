"""The CUDA device of this process, according to torch. Imports torch when first asked."""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def name() -> str | None:
    """The name of the first CUDA device that torch can use; None without a device, a driver or torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
