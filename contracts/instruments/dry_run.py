"""Dry runs: one process acts as one rank of a simulated world, without memory for its tensors.

Floating-point tensors have shapes only (torch's FakeTensorMode). Integers and bools are real, because they decide what
is sent: how many rows go to which rank, which rank holds which token. A collective of integers returns what it would if
every rank contributed the same as this one. A floating-point tensor that is read as a number reads as 1.

The process group is torch's `fake` backend, which sends nothing. It is in torch.testing._internal. torchtitan uses it,
FakeTensorMode and dispatch modes for the same purpose. All are as in torch 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # registers collectives for tensors without elements
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from contracts.instruments.ranks import excepthook_kept
from contracts.instruments.traffic import NAMESPACES, Collective, message, read

HOST = torch.device("cpu")
DEVICE = torch.ops.prim.device.default
ITEM = torch.ops.aten._local_scalar_dense.default
REDISTRIBUTION = "torch.distributed.tensor._redistribute"
"""DTensor's logger of redistributions. Its warnings concern the speed of a run, and a dry run has none."""


@contextlib.contextmanager
def simulated_world(world: int, rank: int) -> Iterator[Shapes]:
    """Inside, this process is one rank of a simulated world, tensors have no elements, and collectives are recorded.

    Raises:
        AssertionError: in a process that already has a world.
    """
    assert not dist.is_initialized(), "a rehearsal needs a process without a world"
    log = logging.getLogger(REDISTRIBUTION)
    level = log.level
    log.setLevel(logging.ERROR)
    with excepthook_kept():
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            with Shapes() as shapes:
                yield shapes
        finally:
            dist.destroy_process_group()
            log.setLevel(level)


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Runs every operator on shapes or on real integers. `issued` has the collectives in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode()
        self.issued: list[Collective] = []
        self.found: dict[Any, tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its operators arrive one level below
        given = list(_tensors((args, kwargs or {})))
        shapeless = any(isinstance(each, FakeTensor) for each in given)
        if func is ITEM and shapeless:
            return assumed_value(args[0])
        found = self.seen(func, args, kwargs or {})
        if shapeless:
            return self.on_shapes(func, args, kwargs or {}, given)
        if found is not None:
            return equal_contributions(found, func, args, kwargs or {})
        return self.on_numbers(func, args, kwargs or {}, bool(given))

    def seen(self, func: Any, args: Any, kwargs: Any) -> Collective | None:
        """Records the call if it is a collective or message; None if it is neither."""
        if func.namespace not in NAMESPACES:
            return None
        found = read(func, args, kwargs) or message(func, args, kwargs)
        if found is not None:
            self.issued.append(found)
        return found

    def on_shapes(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        if not all(isinstance(each, FakeTensor) for each in given):
            args, kwargs = tree_map(self.shaped, (args, kwargs))
        kind = kind_of(func) if given and kwargs.get("device") is None else "other"
        if kind == "other":
            with self.fake:
                return func(*args, **kwargs)
        if kind == "view":
            return self.at_once(func, args, kwargs)
        return self.as_before(func, args, kwargs)

    def at_once(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of FakeTensorMode without its checks, which is faster."""
        with in_kernel_invocation_manager(self.fake):
            out = func(*args, **kwargs)
        return self.wrapped(out) if isinstance(out, Tensor) else type(out)(map(self.wrapped, out))

    def wrapped(self, out: Tensor) -> Tensor:
        return out if isinstance(out, FakeTensor) else FakeTensor(self.fake, out, HOST)

    def as_before(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that returns one new tensor or its own input. Results are cached: 52 layers need the same."""
        key = (func, cache_key(args), cache_key(tuple(kwargs.items())))
        if key not in self.found:
            out = self.at_once(func, args, kwargs)
            self.found[key] = None if out is args[0] else (tuple(out.shape), out.stride(), out.dtype)
            return out
        found = self.found[key]
        if found is None:
            return args[0]
        shape, stride, dtype = found
        return FakeTensor(self.fake, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), HOST)

    def shaped(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, FakeTensor):
            return x
        return FakeTensor(self.fake, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), HOST)

    def on_numbers(self, func: Any, args: Any, kwargs: Any, given: bool) -> Any:
        """An operator with only integer inputs, or none: it really runs, unless its output is floating point."""
        dtype = kwargs.get("dtype")
        if given and not (dtype is not None and dtype.is_floating_point):
            return func(*args, **kwargs)
        if given:
            return self.on_shapes(func, args, kwargs, list(_tensors((args, kwargs))))
        with self.fake:
            out = func(*args, **kwargs)
        return func(*args, **kwargs) if isinstance(out, Tensor) and not out.is_floating_point() else out


Kind = Literal["view", "one", "other"]
_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}


@functools.cache
def kind_of(func: Any) -> Kind:
    """How to run an operator on tensors without elements: `view` for a view, `one` if it returns one new tensor or the
    tensor that it writes into, `other` to leave it to FakeTensorMode."""
    on_meta = torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta")
    if func.namespace != "aten" or not on_meta or _ON_VALUES & set(func.tags) or torch.Tag.inplace_view in func.tags:
        return "other"
    returns = func._schema.returns
    if func.is_view:
        return "view"
    if len(returns) != 1 or str(returns[0].type) != "Tensor":
        return "other"
    wrote = [each.alias_info is not None for each in func._schema.arguments]
    if not any(wrote):
        return "one"
    return "one" if wrote[0] and not any(wrote[1:]) else "other"


def cache_key(given: Any) -> Any:
    """Arguments as a cache key: of a tensor only the layout, not the values."""
    if isinstance(given, Tensor):
        return tuple(given.shape), given.stride(), given.storage_offset(), given.dtype
    if isinstance(given, list | tuple):
        return tuple(map(cache_key, given))
    return type(given), given


def assumed_value(x: Tensor) -> float:
    """The value of a floating-point number that was not computed."""
    assert x.is_floating_point(), f"a whole number was lost: {x} follows from floating point"
    return 1.0


def equal_contributions(found: Collective, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a collective of integers to which every rank contributes the same."""
    out = func(*args, **kwargs)
    ranks = len(found.members)
    if found.op == "all_reduce" and found.reduce == "sum":
        for each in _tensors(args[0]):
            each.mul_(ranks)
    elif found.op == "all_to_all" and func.namespace == "c10d":
        into, mine = args[0], found.members.index(dist.get_rank())
        into.copy_(torch.cat([args[1].flatten().chunk(ranks)[mine]] * ranks).view(into.shape))
    elif found.op == "all_gather":
        for into in args[0][0]:
            into.copy_(args[1][0])
    return out


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)
    elif isinstance(given, dict):
        for each in given.values():
            yield from _tensors(each)
