"""One rank of a world that is not there, in one process and without memory.

Floating point has shapes alone (torch's FakeTensorMode); whole numbers and bools are real, because they decide what is
sent: how many rows go to which rank, who holds which token. A collective of whole numbers ends as it would if every
rank had put in the same as this one. What is asked of floating point as a number is 1.

The process group is torch's `fake` one, which sends nothing. It lies in torch.testing._internal; it, FakeTensorMode and
the modes of dispatch are used by torchtitan for the same purpose, and are those of torch 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # what collectives make of tensors without elements
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from contracts.instruments.traffic import NAMESPACES, Collective, message, read

HOST = torch.device("cpu")
DEVICE = torch.ops.prim.device.default
ITEM = torch.ops.aten._local_scalar_dense.default
REDISTRIBUTION = "torch.distributed.tensor._redistribute"
"""Its warnings are about the speed of a run, and here nothing runs."""


@contextlib.contextmanager
def made_up(world: int, rank: int) -> Iterator[Shapes]:
    """Within it this process is one rank of a world, its tensors have no elements, and what it issues is recorded.

    Raises:
        AssertionError: in a process that has a world already.
    """
    assert not dist.is_initialized(), "a rehearsal needs a process without a world"
    log = logging.getLogger(REDISTRIBUTION)
    level = log.level
    log.setLevel(logging.ERROR)
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        with Shapes() as shapes:
            yield shapes
    finally:
        dist.destroy_process_group()
        log.setLevel(level)


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Sees every call of an operator, and carries it out on shapes or on real whole numbers; `issued` in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode()
        self.issued: list[Collective] = []
        self.found: dict[Any, tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its operators arrive a level below
        given = list(_tensors((args, kwargs or {})))
        shapeless = any(isinstance(each, FakeTensor) for each in given)
        if func is ITEM and shapeless:
            return told(args[0])
        found = self.seen(func, args, kwargs or {})
        if shapeless:
            return self.on_shapes(func, args, kwargs or {}, given)
        if found is not None:
            return alike(found, func, args, kwargs or {})
        return self.on_numbers(func, args, kwargs or {}, bool(given))

    def seen(self, func: Any, args: Any, kwargs: Any) -> Collective | None:
        """The collective or message that a call is, recorded; None for what is none."""
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
        """What FakeTensorMode comes to, without its questions whether it may."""
        with in_kernel_invocation_manager(self.fake):
            out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            return self.wrapped(out)
        return type(out)(map(self.wrapped, out))

    def wrapped(self, out: Tensor) -> Tensor:
        return out if isinstance(out, FakeTensor) else FakeTensor(self.fake, out, HOST)

    def as_before(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator of one tensor that is new or the one it wrote into: what 52 layers ask 52 times is found once."""
        key = (func, asked(args), asked(tuple(kwargs.items())))
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
        """What has only whole numbers to begin with, or nothing: real, unless it makes floating point."""
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
    """How an operator of tensors without elements is carried out: `view` on what they share, `one` where its answer is
    one new tensor or the one that it writes into, `other` where FakeTensorMode knows best."""
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


def asked(given: Any) -> Any:
    """Arguments as a key: of a tensor what its shape, and no value, could change."""
    if isinstance(given, Tensor):
        return tuple(given.shape), given.stride(), given.storage_offset(), given.dtype
    if isinstance(given, list | tuple):
        return tuple(map(asked, given))
    return type(given), given


def told(x: Tensor) -> float:
    """What a number is said to be that nobody has computed."""
    assert x.is_floating_point(), f"a whole number was lost: {x} follows from floating point"
    return 1.0


def alike(found: Collective, func: Any, args: Any, kwargs: Any) -> Any:
    """A collective of whole numbers, when every rank puts in what this one does."""
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
