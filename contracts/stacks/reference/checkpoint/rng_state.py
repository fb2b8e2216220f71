"""RNG states of one process as tensors, so that a checkpoint stores them like other tensors.

Each rank has its own: the names under which a world saves them carry the rank.
"""

import hashlib
import importlib.util
import random
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def capture(device: str = "cpu") -> dict[str, Tensor]:
    """The states by name: `python` and, if it is installed, `numpy` int64; `torch` and, on a CUDA device, `cuda` uint8.

    Of the devices only that of this rank: a state is read in a context, and each context takes memory of its device.
    """
    _, words, gauss = random.getstate()
    states = {"torch": torch.get_rng_state(), "python": _packed(words, gauss)}
    if importlib.util.find_spec("numpy"):
        import numpy

        held: dict[str, Any] = numpy.random.get_state(legacy=False)
        words = (*held["state"]["key"].tolist(), held["state"]["pos"])
        states["numpy"] = _packed(words, held["gauss"] if held["has_gauss"] else None)
    if device == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: Mapping[str, Tensor]) -> None:
    """Set every generator of `capture` that is given.

    The last thing that a resume does: whatever draws a number after it continues elsewhere than the run that was saved.
    """
    words, gauss = _unpacked(states["python"])
    random.setstate((3, tuple(words), gauss))
    torch.set_rng_state(states["torch"].cpu())
    if "numpy" in states:
        import numpy

        words, gauss = _unpacked(states["numpy"])
        keys = numpy.array(words[:-1], dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", keys, words[-1], int(gauss is not None), gauss or 0.0))
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu())


def seed_rank_stream(seed: int, step: int, whose: str) -> None:
    """Begin every generator of this process anew: another stream for each run, step and owner, the same each time."""
    drawn = hashlib.sha256(f"{seed}/{step}/{whose}".encode("ascii")).digest()
    number = int.from_bytes(drawn[:4], "little")  # NumPy takes 32 bits
    random.seed(number)
    torch.manual_seed(number)
    if importlib.util.find_spec("numpy"):
        import numpy

        numpy.random.seed(number)


def _packed(words: tuple[int, ...], gauss: float | None) -> Tensor:
    """Words of the generator, whether a second normal number waits, and its bits."""
    (bits,) = struct.unpack("<q", struct.pack("<d", gauss or 0.0))
    return torch.tensor([*words, int(gauss is not None), bits], dtype=torch.int64)


def _unpacked(state: Tensor) -> tuple[list[int], float | None]:
    *words, waiting, bits = (int(each) for each in state.tolist())
    (gauss,) = struct.unpack("<d", struct.pack("<q", bits))
    return words, gauss if waiting else None
