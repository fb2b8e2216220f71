"""The CUDA device of this process, found out through NVML. CUDA itself is not touched: it does not survive a fork.

torch asks NVML where a variable says so (`ask_nvml`), and CUDA otherwise. Autograd and the compiler touch CUDA by
themselves wherever there is a device, so that a fork that computes on the CPU says so first (`hide`).
"""

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import MutableMapping
from typing import NamedTuple

NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""torch reads it whenever it is asked for a device."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
QUERY_S = 30.0  # a driver that nobody keeps loaded takes seconds


class Card(NamedTuple):
    """A card's name and its compute capability."""

    name: str
    capability: tuple[int, int]


def ask_nvml(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make torch ask NVML whether there is a device, in this process and in those that it starts."""
    environment.setdefault(NVML, "1")


def name() -> str | None:
    """The name of the first CUDA device that torch can use; None without a device, a driver or torch."""
    card = first()
    return None if card is None else card.name


@functools.cache
def first() -> Card | None:
    """The first CUDA device that torch can use. Imports torch when first asked."""
    ask_nvml()
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    which = os.environ.get(VISIBLE, "0").partition(",")[0].strip()
    return (
        _of_the_library(which)
        or _of_the_command(which)
        or Card(torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0))  # a part of a card; touches CUDA
    )


def _of_the_library(which: str) -> Card | None:
    """The answer of nvidia-ml-py; None if it is not installed or does not find the card."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        by = pynvml.nvmlDeviceGetHandleByIndex if which.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        card = by(int(which) if which.isdigit() else which)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(card)
        return Card(pynvml.nvmlDeviceGetName(card), (major, minor))
    except pynvml.NVMLError:  # a shortened UUID, or a part of a card
        return None


def _of_the_command(which: str) -> Card | None:
    """The answer of nvidia-smi; None if it is not there or does not find the card."""
    command = ("nvidia-smi", "-i", which, "--query-gpu=name,compute_cap", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=True)
        title, _, capability = done.stdout.strip().splitlines()[0].rpartition(", ")
        major, _, minor = capability.partition(".")
        return Card(title, (int(major), int(minor)))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None


def hide() -> None:
    """Make torch see no device in this process: a fork, in which CUDA may be lost, and whose work is the CPU's.

    Private in torch 2.11 to 2.13: the number of devices that `torch.cuda.device_count` has counted. Without a device it
    is counted anew each time, and the variables would be enough.
    """
    os.environ |= {NVML: "1", VISIBLE: ""}
    if "torch" in sys.modules:
        sys.modules["torch"].cuda._cached_device_count = 0


def used() -> bool:
    """Whether this process has a context on a device."""
    return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())


def lost() -> bool:
    """Whether this process is a fork of one that had asked CUDA for a device: it can use none.

    Private in torch 2.11 to 2.13: what torch says where CUDA is used in such a fork, and only then.
    """
    return "torch" in sys.modules and bool(sys.modules["torch"].cuda._is_in_bad_fork())
