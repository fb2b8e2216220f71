"""What is done to transformers so that it answers on a CPU: nothing is changed silently, the labels name each."""

import contextlib
import importlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Wide(TorchFunctionMode):
    """Inside, `torch.float32` as an argument is float64, and `Tensor.float` is `Tensor.double`."""

    paused: ClassVar[bool] = False

    @classmethod
    def pause_in(cls, optimizer: torch.optim.Optimizer) -> None:
        """Change nothing while it steps or loads: a fused one counts steps in float32, and CUDA reads those bits."""

        def pause(*_: Any) -> None:
            cls.paused = True

        def go_on(*_: Any) -> None:
            cls.paused = False

        optimizer.register_step_pre_hook(pause)
        optimizer.register_step_post_hook(go_on)
        optimizer.register_load_state_dict_pre_hook(pause)
        optimizer.register_load_state_dict_post_hook(go_on)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        named = {name: _wider(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wider, args), **named)


class Chosen(TorchFunctionMode):
    """Looks on while experts are chosen and hands nothing else on: what topk gave, and what its values were cast to.

    For a router whose choice no module is handed. It divides the values in place.
    """

    values: Tensor
    places: Tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        told = func(*args, **(kwargs or {}))
        if func is torch.topk:
            self.values, self.places = told
        elif func is torch.Tensor.to and args[0] is getattr(self, "values", None):
            self.values = told
        return told


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def recomputed() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of blocks, forward and again in the backward pass: `Wide` is off inside of `Tensor.backward`."""
    return contextlib.nullcontext(), Wide()


@contextlib.contextmanager
def widened() -> Iterator[None]:
    """`Wide`, and new tensors of floats are float64: the Trainer's sum of losses is one."""
    before, load, Wide.paused = torch.get_default_dtype(), torch.load, False

    def read(*given: Any, **named: Any) -> Any:
        """The tensors of a file in the dtypes that they have there: steps counted by a fused optimizer are float32."""
        Wide.paused = True
        try:
            return load(*given, **named)
        finally:
            Wide.paused = False

    torch.set_default_dtype(torch.float64)
    torch.load = read
    try:
        with Wide():
            yield
    finally:
        torch.load = load
        torch.set_default_dtype(before)
        Wide.paused = False


@contextlib.contextmanager
def own_operations(modeling: str) -> Iterator[None]:
    """A model's own operations in place of another package's kernels, such as mamba-ssm's: those have no float64.

    Which it takes is decided when its module is imported; there its own are those which `functools.wraps` names.
    """
    names = vars(importlib.import_module(f"transformers.{modeling}"))
    before = {name: each for name, each in names.items() if inspect.isfunction(each) and hasattr(each, "__wrapped__")}
    names.update({name: inspect.unwrap(each) for name, each in before.items()})
    try:
        yield
    finally:
        names.update(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings about a CPU and about zero-sized tensors, and transformers' own progress."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(before)
            if bars:
                logging.enable_progress_bar()
