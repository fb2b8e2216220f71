"""What is changed about torchtitan so that it runs on a CPU over gloo: one function a change, each says why.

Nothing is changed silently: a function finds its place or says that it could not be reached, and the words in `SHIMS`
stand in the labels of the party, hence in every report. Tried with 0.3.0 (all) and 0.2.2 (topology alone).
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from contracts.spec.errors import Unreachable

SHIMS = {
    "device": "device type cpu in torchtitan.tools.utils, which knows accelerators alone",
    "kernels": "empty modules for kernels where triton is missing: of minimal_async_ep, whose dispatcher is not used",
    "experts": "experts' products in the dtype of their input; GroupedExperts.forward rounds to bfloat16",
    "sums": "fully_shard adds and does not scale: gloo has no PREMUL_SUM, and the factor is 1",
    "stages": "microbatches are joined before torch's pipeline schedules cut them: step() of torch 2.13 takes no list",
    "attention": "its ScaledDotProductAttention in place of flex_attention, which wants a compiler",
}
"""Every shim, by the name under which labels list it."""

TRIED = ("0.3.0", "0.2.2")


def on_cpu() -> None:
    """Set the device type before anything reads it: other modules copy the name when they are imported.

    Raises:
        Unreachable: where `torchtitan.tools.utils` has no such name.
    """
    import torch

    utils = _module("torchtitan.tools.utils")
    for name, value in (("device_type", "cpu"), ("device_module", torch.cpu)):
        if not hasattr(utils, name):
            raise Unreachable(
                f"could not reach torchtitan.tools.utils.{name}: the device type of this version is elsewhere"
            )
        setattr(utils, name, value)


KERNELS = ("torchtitan.distributed.minimal_async_ep.kernels", "torchtitan.models.moe.kernels")
"""Modules that import triton at their top: of 0.3.0 and of 0.2.2."""


def without_triton() -> None:
    """Put modules of the same functions, which refuse to be called, in the place of kernels that need triton."""
    if importlib.util.find_spec("triton") is not None:
        return
    found = importlib.util.find_spec("torchtitan")  # which does not import it: 0.2.2 wants triton at its first line
    if found is None or found.origin is None:
        raise Unreachable("could not reach torchtitan; `make titan` installs it")
    root = Path(found.origin).parent.parent
    for name in KERNELS:
        source = root / f"{name.replace('.', '/')}.py"
        if name in sys.modules or not source.exists():
            continue
        stub = ModuleType(name)
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                setattr(stub, node.name, _absent)
        sys.modules[name] = stub


def _absent(*_: Any, **__: Any) -> None:
    raise NotImplementedError("a kernel of torchtitan's was called, and triton is not installed")


def experts_keep_their_dtype() -> None:
    """Give `GroupedExperts.forward` a method of no effect where it calls `bfloat16`: the code stays its own.

    Raises:
        Unreachable: where the forward pass calls no such method.
    """
    experts = _module("torchtitan.models.common.moe").GroupedExperts
    forward: FunctionType = experts.forward
    names = forward.__code__.co_names
    if "float" in names and "bfloat16" not in names:
        return  # done before
    if "bfloat16" not in names:
        raise Unreachable("could not reach the rounding of GroupedExperts.forward: it calls no bfloat16")
    forward.__code__ = forward.__code__.replace(
        co_names=tuple("float" if name == "bfloat16" else name for name in names)
    )


def sums_alone(modules: Iterable[Any]) -> None:
    """Public torch: every unit of FSDP adds gradients up; torchtitan set the factor to 1 already."""
    from torch.distributed.fsdp import FSDPModule

    for root in modules:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


def whole_batches(schedule: Any) -> None:
    """Hand a schedule the whole batch where its `step` knows no `arg_mbs`: torchtitan 0.3.0 calls a newer torch's."""
    import torch

    whole = schedule.step
    if "arg_mbs" in inspect.signature(whole).parameters:
        return

    def step(*, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, **rest: Any) -> Any:
        assert not any(kwarg_mbs or ()), "keywords of microbatches are not joined"
        args = [torch.cat(each) for each in zip(*arg_mbs, strict=True)] if arg_mbs else []
        return whole(*args, target=torch.cat(target_mbs) if target_mbs else None, **rest)

    schedule.step = step


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unreachable(f"could not reach {name}: {error}; `make titan` installs torchtitan") from None


def apply() -> None:
    """Every shim that comes before the rest of torchtitan is imported, and the one on its experts."""
    without_triton()
    on_cpu()
    experts_keep_their_dtype()


@contextlib.contextmanager
def quiet() -> Any:
    """Warnings that torchtitan and torch give on a CPU, each seen, none about numbers, are not the suite's errors."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
