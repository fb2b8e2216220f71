"""A CUDA device that a CPU imitates: which tensors a stack leaves on the host shows without a device.

    python -m benchmarks.imitated_card check --device cuda --stack transformers --profile BLK-01,OPT-01

The words after it are a command of `rankproof`. Tensors say `cuda:0`, lie in the memory of the host and are computed by
the CPU. An operation over tensors of two devices raises, as CUDA's do. So this judges where tensors are, and no kernel.
Autocast, compilation and ranks cannot be imitated, and layers are not recomputed in the backward pass.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map

from contracts.stacks.megatron.shims import Nowhere  # a stream or an event of a card that computes at once

aten = torch.ops.aten
NAME = "card"  # torch's own name of the device; `cuda` is taken, also in a build for CPUs
HERE, CUDA, HOST = f"{NAME}:0", torch.device("cuda", 0), torch.device("cpu")
MIXED = frozenset({
    aten.copy_.default, aten._to_copy.default, aten.copy.default, aten._foreach_copy_.default, aten.set_.source_Tensor,
    aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default, aten.is_same_size.default,
})  # fmt: skip
"""Operations that take tensors of two devices. All take a number of no dimension from the host."""
_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_library = torch.library.Library("aten", "IMPL")


class OnCard(Tensor):
    """A tensor of the card; `held` has its numbers."""

    held: Tensor
    made = 0
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnCard":
        made: OnCard = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=torch.device(HERE),
        )  # fmt: skip
        made.held = held
        OnCard.made += 1
        return made

    def record_stream(self, _: Any) -> None:  # type: ignore[override]
        """Nothing: a stream computes at once."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnCard":
        memo[id(self)] = OnCard(self.held.clone()).requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]


def held(value: Any) -> Any:
    return value.held if isinstance(value, OnCard) else value


def computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operation on the host, whose results are on the card if its tensors or its `device` are.

    Raises:
        RuntimeError: for tensors of two devices.
    """
    tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
    ours = [each for each in tensors if isinstance(each, OnCard)]
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    if not ours and wanted != NAME:
        return func(*args, **kwargs)
    others = [each for each in tensors if not isinstance(each, OnCard)]
    if any(type(each) not in (Tensor, torch.nn.Parameter) for each in others):
        return NotImplemented
    if ours and (func not in MIXED or (func is aten.index.Tensor and not isinstance(args[0], OnCard))):
        for each in others:
            if each.dim():
                raise RuntimeError(f"Expected all tensors to be on one device: {func} has cuda:0 and {each.device}")
    if func is aten.is_pinned.default:
        return False
    if func is aten._conj.default:
        func = aten.conj_physical.default  # the other is a view whose bit a wrapper would have to hold
    given = {**kwargs, "device": HOST} if wanted == NAME else dict(kwargs)
    if given.get("pin_memory"):
        given["pin_memory"] = False
    there, named = tree_map(held, (tuple(args), given))
    if func.namespace == "c10d":  # which fills what it was given
        return func(*there, **named)
    if func is aten.histc.default and not there[0].is_floating_point():
        there = (there[0].double(), *there[1:])  # which CUDA counts, and a CPU does not
    result = func(*there, **named)
    if wanted == "cpu" or func is aten._local_scalar_dense.default:
        return result
    if func is aten.copy_.default and not isinstance(args[0], OnCard):
        return args[0]
    known = {id(each.held): each for each in ours}

    def back(value: Any) -> Any:
        return known[id(value)] if id(value) in known else OnCard(value) if isinstance(value, Tensor) else value

    found = tree_map(back, result)
    aliases = func._schema.is_mutable or any(each.alias_info for each in func._schema.returns)
    return return_and_correct_aliasing(func, args, kwargs, found) if aliases else found


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class _Names(TorchFunctionMode):
    """The card is called `cuda` by Python, and says that it is `cuda`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func == _DEVICE:
            return CUDA if func(*args).type == NAME else func(*args)
        if func == _IS_CUDA:
            return _DEVICE(args[0]).type == NAME
        if args and isinstance(args[0], OnCard):
            if func in (Tensor.numpy, Tensor.__array__):
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
            if func in (Tensor.data_ptr, Tensor.tolist, Tensor.untyped_storage):
                return func(args[0].held)
            if func is Tensor.type and len(args) == 1:
                return func(args[0].held).replace("torch.", "torch.cuda.")
        if func == _SET_DATA and all(isinstance(each, OnCard) for each in args):
            args[0].held = args[1].held
        if func is torch.tensor:  # which reads numbers one by one
            args = tree_map(lambda each: each.item() if isinstance(each, OnCard) else each, args)
        if func is Tensor.cuda:
            return args[0].to(HERE)
        if "device" in kwargs:
            kwargs["device"] = HERE if kwargs["device"] == 0 else _named(kwargs["device"])
        return func(*map(_named, args), **kwargs)


def _swapped(swap: Callable[..., None]) -> Callable[..., None]:
    """`torch.utils.swap_tensors`, after which a tensor has its attributes still, as where `data` is assigned."""

    def kept(one: Tensor, other: Tensor) -> None:
        own = {name: each for name, each in vars(one).items() if name != "held"}
        swap(one, other)
        vars(one).update(own)

    return kept


def _moved(apply: Callable[..., Any]) -> Callable[..., Any]:
    """`Module._apply`, which swaps parameters of two devices: an assigned `data` would keep the old numbers."""

    def moved(*args: Any, **kwargs: Any) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(*args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return moved


def _named(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device(HERE) if value.type == "cuda" else value
    return HERE if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _made(operation: Any) -> Callable[..., OnCard]:
    return lambda *args, **kwargs: OnCard(operation(*args, **{**kwargs, "device": HOST, "pin_memory": False}))


def _copied(source: Tensor, into: Tensor, non_blocking: bool = False) -> Tensor:
    held(into).copy_(held(source))
    return into


def _says(value: Any) -> Callable[..., Any]:
    """A function of its own: the compiler has a rule for each of torch's."""
    return lambda *_: value


def install() -> None:
    """Put the card into this process, for good.

    Private: a backend that Python writes (torch 2.13), and what `torch.cuda` reports.
    """
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    _library.impl("empty.memory_format", _made(aten.empty.memory_format), "PrivateUse1")
    _library.impl("empty_strided", _made(aten.empty_strided.default), "PrivateUse1")
    _library.impl("_copy_from", _copied, "PrivateUse1")
    torch.nn.Module._apply = _moved(torch.nn.Module._apply)  # type: ignore[method-assign]
    torch.utils.swap_tensors = _swapped(torch.utils.swap_tensors)
    torch.utils.checkpoint.checkpoint = lambda run, *args, use_reentrant=None, **_: run(*args)  # type: ignore[assignment]
    generator = torch.Generator()
    nothing = ("_lazy_init", "synchronize", "empty_cache", "set_device", "reset_peak_memory_stats")
    none_of_it = (
        "memory_reserved",
        "memory_allocated",
        "max_memory_reserved",
        "max_memory_allocated",
        "current_device",
    )
    says: dict[str, Callable[..., Any]] = {
        **{name: _says(None) for name in nothing}, **{name: _says(0) for name in none_of_it},
        "is_available": _says(True), "is_bf16_supported": _says(True), "device_count": _says(1),
        "get_device_name": _says("imitated"), "get_device_capability": _says((9, 0)),
        "is_initialized": lambda: OnCard.made > 0,
        "memory_stats": lambda *_: {"allocation.all.allocated": OnCard.made},
        "get_rng_state": lambda *_, **__: generator.get_state(),
        "set_rng_state": lambda state, *_, **__: generator.set_state(state),
        "manual_seed": generator.manual_seed, "manual_seed_all": generator.manual_seed,
    }  # fmt: skip
    says |= dict.fromkeys(("Stream", "Event", "current_stream", "default_stream", "stream"), Nowhere)
    says["_lazy_call"] = lambda call, **_: call()
    for name, answer in says.items():
        setattr(torch.cuda, name, answer)
        if hasattr(torch.cuda.random, name):
            setattr(torch.cuda.random, name, answer)
    torch.cuda.default_generators = (generator,)
    _Operations().__enter__()
    _Names().__enter__()


if __name__ == "__main__":
    from contracts.harness.cli import main

    install()
    print("An imitated device: where tensors are is judged, and no kernel.", file=sys.stderr)  # noqa: T201
    main()
