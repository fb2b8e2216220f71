"""On which device a stack is asked to compute, and on which one it did.

`auto` asks the unit tier on the CPU, and contracts of several ranks on CUDA devices if each rank of this node has one.
The gpu tier names its devices itself.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Literal, get_args

from contracts.contract import Contract, Tier
from contracts.instruments.ranks import here
from contracts.spec import Party, refuse

Device = Literal["cpu", "cuda"]
CHOICES = ("auto", *get_args(Device))
VARIABLE = "RANKPROOF_DEVICE"
"""Holds the choice for every process of a run: workers, ranks, interpreters."""
COMPUTES = frozenset({"run_block", "run_model", "train", "run_compiled", "pass_compiled"})
"""Questions that no stack answers without tensors on the device that they name."""


def chosen(environment: Mapping[str, str] = os.environ) -> str:
    """The choice of this run.

    Raises:
        Refused: for a device that is none of `CHOICES`.
    """
    said = environment.get(VARIABLE) or "auto"
    if said not in CHOICES:
        raise refuse(VARIABLE, said, f"is none of {', '.join(CHOICES)}", "choose one of them")
    return said


def refuse_absent() -> None:
    """
    Raises:
        Refused: for CUDA where torch sees no device, and for a device that is none of `CHOICES`.
    """
    if chosen() == "cuda" and not count():
        raise refuse("device", "cuda", "is asked for, and torch sees no CUDA device", "leave it out, or give cpu")


def device_of(tier: Tier, ranks: int | None = None) -> Device:
    """The device on which contracts of a tier are asked; of several ranks, as many as there are on this node."""
    said = chosen()
    if said == "auto":
        return "cuda" if tier == "gpu" or (tier == "dist" and each_has_one(ranks or _ranks())) else "cpu"
    return "cuda" if said == "cuda" else "cpu"


def asked_on(contract: Contract) -> Device:
    """The device that takes the place of the CPU in the questions of a contract."""
    return "cpu" if contract.tier == "gpu" or not contract.of_numbers else device_of(contract.tier)


def computes_on(party: Party) -> frozenset[str]:
    """The devices on which a party computes; the CPU if it declares none."""
    declared: frozenset[str] = getattr(party, "computes_on", frozenset({"cpu"}))
    return declared


def each_has_one(ranks: int) -> bool:
    """Whether each of several ranks of this node has a CUDA device of its own."""
    return ranks > 1 and count() >= ranks


def _ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", here().world))


def count() -> int:
    """The CUDA devices that torch can use. It asks NVML: no context is made, and later forks stay healthy."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


KEPT = 1 << 30
"""Bytes that torch may keep of a device from one case to the next: small models ask for them again and again."""


_lost: list[str] = []  # the case in which CUDA was lost, and what it said


def settle() -> None:
    """Wait for CUDA devices, so that an asynchronous error is of the case that caused it. Give back what torch keeps of
    them, if that is much: ranks may share a card."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.synchronize()
    if torch.cuda.memory_reserved() > KEPT:
        torch.cuda.empty_cache()


def note_loss(item: str) -> None:
    """After an error: remember the case if CUDA is of no use in this process any more, as after a bad address."""
    try:
        settle()
    except Exception as error:
        _lost[:] = _lost or [f"CUDA of this process was lost in {item}: {str(error).partition(chr(10))[0]}"]


def loss() -> str:
    """Why nothing can be asked on CUDA in this process any more; empty if it can."""
    return "".join(_lost)


def allocations() -> int:
    """How often this process has allocated memory on CUDA devices so far; 0 if it has not touched one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(int(torch.cuda.memory_stats(each).get("allocation.all.allocated", 0)) for each in range(count()))
