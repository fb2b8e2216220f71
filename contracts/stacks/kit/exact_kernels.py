"""Kernels that give equal bits from run to run, for answers that are compared."""

import contextlib
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def exact_kernels(device: str) -> Iterator[None]:
    """Inside, kernels of a CUDA device are deterministic, and round no operand to TF32. On a CPU they are so anyway.

    A kernel without a deterministic form runs as it is: torch would raise, and a sum over atomics is right within its
    rounding.
    """
    if device == "cpu":
        yield
        return
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS makes a handle
    cudnn, before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have a deterministic implementation.*")
            warnings.filterwarnings("ignore", ".*defaults to a non-deterministic algorithm.*")
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = cudnn
        torch.use_deterministic_algorithms(before, warn_only=warns)
