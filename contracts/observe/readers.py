"""The places in which a stack that shards plain tensors keeps them: Megatron-Core's layers and buffers, the flat
parameters of FSDP1 and of DeepSpeed's ZeRO.

A reader is asked about a root module once, and then about each tensor; it issues no collective and imports no stack: a
module of such a stack is there because the script imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from contracts.observe.names import canonical
from contracts.observe.placement import Held, flat_range, of_flat, unplaced
from contracts.observe.sketch import Piece


class Reader(Protocol):
    """What a recorder asks."""

    names: dict[int, str]

    def data(self) -> tuple[int, ...]:
        """The ranks that share a batch with this one."""
        ...

    def same(self) -> tuple[int, ...]:
        """The ranks that consume the same rows as this one."""
        ...

    def parts(self, parameter: Tensor, tensor: Tensor) -> list[tuple[str, Held]] | None:
        """The whole tensor of which `tensor`, a parameter or a gradient or moment of it, is a part; None if this reader
        does not know."""
        ...

    def renew(self, parameter: Tensor) -> None:
        """Give the optimizer's own copy of a weight its value, after it was changed."""
        ...


def reader_of(root: nn.Module) -> Reader | None:
    """The reader of a root module; None for one of plain torch, DDP or FSDP2."""
    return Megatron.of(root) or Flat.of(root)


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """The place of a parameter's local part: in which shape, and whether this rank is the first that holds it."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    part: str
    first: bool
    first_but_for_data: bool


@dataclass(kw_only=True, eq=False)
class Megatron:
    """Parameters by their own `sharded_state_dict`; the shards of the distributed optimizer by the buffers of its DDP.

    Args:
        names: of a layer on a pipeline stage, and of an expert: with the number that it has in the whole model.
        ranges: which part of the flattened parameter this rank's distributed optimizer steps.
    """

    names: dict[int, str] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    parameters: list[nn.Parameter] = field(default_factory=list)
    known: dict[int, tuple[Tensor, str, Held | None]] = field(default_factory=dict)

    @staticmethod
    def of(root: nn.Module) -> Megatron | None:
        """The reader of a root module; None where it is not of Megatron-Core."""
        inner = root
        while isinstance(getattr(inner, "module", None), nn.Module):
            inner = inner.module  # type: ignore[assignment]
        if not hasattr(inner, "sharded_state_dict"):
            return None
        local = {id(each): name for name, each in inner.named_parameters()}
        found = Megatron(parameters=list(inner.parameters()), names=dict(local))
        state: Any = inner.sharded_state_dict  # of Megatron's modules
        for each in _flattened(state()):
            if id(each.data) in local:
                found._place(local[id(each.data)], each)
        for buffer in (
            [*getattr(root, "buffers", ()), *getattr(root, "expert_parallel_buffers", ())]
            if (getattr(getattr(root, "ddp_config", None), "use_distributed_optimizer", False))
            else ()
        ):
            found._cut(buffer)
        return found

    def _place(self, name: str, sharded: Any) -> None:
        parameter: Tensor = sharded.data
        index = torch.arange(parameter.numel()).view(parameter.shape)
        built = sharded
        if hasattr(sharded, "build_fn"):  # a fused weight says itself which of its rows lie where
            built = sharded.build_fn(sharded.key, index, sharded.replica_id, None)
        chunks = list(_flattened(built))
        tops: dict[str, int] = {}
        pieces, rows = [], 0
        for each in chunks:
            before = each.prepend_axis_num
            if each.key not in tops:
                tops[each.key], rows = rows, rows + (each.global_shape[before:] or (1,))[0]
            held = index if each is sharded else each.data
            start = int(held.reshape(-1)[0]) if held.numel() else 0
            if not torch.equal(held.reshape(-1), torch.arange(start, start + held.numel())):
                return
            at = [torch.arange(begin, begin + size)
                  for begin, size in zip(each.global_offset[before:], each.local_shape, strict=True)]  # fmt: skip
            if at:
                at[0] = at[0] + tops[each.key]
            pieces.append(Piece(start=start, indices=tuple(at)))
        last = chunks[-1]
        rest = last.global_shape[last.prepend_axis_num :]
        copies = last.replica_id if isinstance(last.replica_id, tuple) else (last.replica_id,)
        part = ";".join(",".join(f"{int(each[0])}+{len(each)}" for each in piece.indices if len(each))
                        for piece in pieces)  # fmt: skip
        self.places[id(parameter)] = Place(
            shape=(rows, *rest[1:]) if rest else (), pieces=tuple(pieces), part=part, first=not any(copies),
            first_but_for_data=not any(copies[:-1]),
        )  # fmt: skip
        self.names[id(parameter)] = _numbered(name, last.key, last.global_offset[: last.prepend_axis_num])

    def _cut(self, buffer: Any) -> None:
        group = buffer.data_parallel_group
        for parameter, (start, end, bucket) in buffer.param_index_map.items():
            size = buffer.buckets[bucket].grad_data.numel() // dist.get_world_size(group)
            low = buffer.buckets[bucket].offset + dist.get_rank(group) * size
            begin, stop = max(start, low), min(end, low + size)
            self.ranges[id(parameter)] = (begin - start, max(begin, stop) - start)

    def data(self) -> tuple[int, ...]:
        state = sys.modules["megatron.core.parallel_state"]
        return tuple(dist.get_process_group_ranks(state.get_data_parallel_group()))

    def same(self) -> tuple[int, ...]:
        state = sys.modules["megatron.core.parallel_state"]
        return tuple(dist.get_process_group_ranks(state.get_tensor_model_parallel_group()))

    def renew(self, parameter: Tensor) -> None:
        copied = getattr(parameter, "main_param", None)
        if isinstance(copied, Tensor):
            low, high = self.ranges.get(id(parameter), (0, parameter.numel()))
            copied.data.view(-1).copy_(parameter.data.reshape(-1)[low:high])

    def parts(self, parameter: Tensor, tensor: Tensor) -> list[tuple[str, Held]] | None:
        if id(parameter) not in self.known:
            self.known[id(parameter)] = (parameter, *self._part(parameter))
        _, name, part = self.known[id(parameter)]
        return None if part is None else [(name, replace(part, local=tensor))]

    def _part(self, held: Tensor) -> tuple[str, Held | None]:
        owner, cut = self._found(held)
        if owner is None:
            return "", None
        name, place = self.names[id(owner)], self.places.get(id(owner))
        if place is None:
            return name, unplaced(held, "Megatron's, in no sharded_state_dict")
        pieces, part, first = place.pieces, place.part, place.first
        if cut is not None:
            pieces = tuple(piece for each in pieces for piece in of_flat(each, *cut))
            part, first = f"{part} {cut[0]}:{cut[1]}", place.first_but_for_data
        return name, Held(local=held, shape=place.shape, pieces=pieces, part=part, first=first)

    def _found(self, held: Tensor) -> tuple[Tensor | None, tuple[int, int] | None]:
        """The parameter of the model that a tensor is, or is the main weight or a shard of; and which range of it."""
        for each in self.parameters:
            if each is held:
                return each, None
            if getattr(each, "main_param", None) is held:
                return each, self.ranges.get(id(each)) if getattr(each, "main_param_sharded", False) else None
            low, high = self.ranges.get(id(each), (0, 0))
            mine = held.numel() == high - low and held.dtype == each.dtype
            if mine and held.data_ptr() == each.data_ptr() + low * each.element_size():
                return each, (low, high)
        return None, None


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of a flat tensor that is one of a flattened parameter, of a name and a shape."""

    name: str
    shape: tuple[int, ...]
    at: int
    numel: int
    start: int


@dataclass(kw_only=True, eq=False)
class Flat:
    """FSDP1 says in its handles, ZeRO's stages 1 and 2 by the fragments of their float32 partitions and its stage 3 by
    the parameters of its groups, which range of which parameter lies where in a flat one. Private; DeepSpeed 0.19.8.

    Args:
        held: the parameters that optimizers have, so that no other one gets their number.
    """

    ranks: tuple[int, ...]
    names: dict[int, str] = field(default_factory=dict)
    ranges: dict[int, list[Range]] = field(default_factory=dict)
    copies: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)
    held: list[Tensor] = field(default_factory=list)

    @staticmethod
    def of(root: nn.Module) -> Flat | None:
        sharded = {name: each for name, each in root.named_modules() if isinstance(each, FullyShardedDataParallel)}
        if sharded:
            found = Flat(ranks=tuple(dist.get_process_group_ranks(next(iter(sharded.values())).process_group)))
            for name, each in sharded.items():
                found._of_handle(name, each._handle)
            return found
        if hasattr(getattr(root, "optimizer", None), "fp32_partitioned_groups_flat"):
            return Flat._of_stage_3(root, root.optimizer)
        mapped = [(name, each, getattr(each, "_hp_mapping", None)) for name, each in root.named_parameters()]
        fragments = [(name, each, fragment) for name, each, fragment in mapped if fragment is not None]
        optimizer: Any = getattr(getattr(root, "optimizer", None), "optimizer", None)
        if not fragments or optimizer is None:
            return None
        found = Flat(ranks=tuple(dist.get_process_group_ranks(getattr(root, "data_parallel_group"))))  # noqa: B009
        found.held += [each for group in optimizer.param_groups for each in group["params"]]
        for name, parameter, fragment in fragments:
            flat = found.held[fragment.param_group_index]
            found.names[id(parameter)] = canonical(name, inside=True)
            found.copies[id(parameter)] = fragment.lp_fragment_address, fragment.hp_fragment
            found.ranges.setdefault(id(flat), []).append(Range(
                name=found.names[id(parameter)], shape=tuple(parameter.shape), at=fragment.hp_fragment_address.start,
                numel=fragment.hp_fragment_address.numel, start=fragment.lp_fragment_address.start,
            ))  # fmt: skip
        return found

    @staticmethod
    def _of_stage_3(root: nn.Module, optimizer: Any) -> Flat:
        """Each rank has a part of each parameter, `ds_tensor`, and those of a group beside each other in float32."""
        found = Flat(ranks=tuple(dist.get_process_group_ranks(getattr(root, "data_parallel_group"))))  # noqa: B009
        names, rank = {id(each): name for name, each in root.named_parameters()}, dist.get_rank()
        for group, flat in zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True):
            found.held.append(flat)
            at = 0
            for each in group:
                name, size = canonical(names[id(each)], inside=True), each.ds_tensor.ds_numel
                start = min(found.ranks.index(rank) * size, each.ds_numel)
                mine = Range(name=name, shape=tuple(each.ds_shape), at=at, numel=min(size, each.ds_numel - start),
                             start=start)  # fmt: skip
                found.names[id(each)], found.ranges[id(each)] = name, [replace(mine, at=0)]
                found.ranges.setdefault(id(flat), []).append(mine)
                at += size
        return found

    def _of_handle(self, module: str, handle: Any) -> None:
        if handle is None:
            return
        flat = handle.flat_param
        self.held.append(flat)
        whose = flat._params or [None] * len(flat._fqns)
        spans = handle._get_flat_param_offsets()  # private, as all of a handle; torch 2.0 - 2.13
        for fqn, shape, info, own, (begin, last) in zip(
            flat._fqns, flat._shapes, flat._shard_param_infos, whose, spans, strict=True
        ):
            name = canonical(f"{module}.{fqn}".removeprefix("."))
            if not handle.uses_sharded_strategy:  # NO_SHARD is DDP: each rank has all of it
                mine = [Range(name=name, shape=tuple(shape), at=begin, numel=last + 1 - begin, start=0)]
            else:
                mine = [Range(name=name, shape=tuple(shape), at=info.offset_in_shard, numel=info.numel_in_shard,
                              start=info.intra_param_start_idx)] if info.in_shard else []  # fmt: skip
            self.ranges.setdefault(id(flat), []).extend(mine)
            if own is not None:
                self.held.append(own)
                self.names[id(own)] = name
                self.ranges[id(own)] = [replace(each, at=0) for each in mine]

    def data(self) -> tuple[int, ...]:
        return self.ranks

    def same(self) -> tuple[int, ...]:
        return ()

    def renew(self, parameter: Tensor) -> None:
        if id(parameter) in self.copies:
            address, copied = self.copies[id(parameter)]
            copied.data.copy_(parameter.data.reshape(-1)[address.start : address.start + address.numel])

    def parts(self, parameter: Tensor, tensor: Tensor) -> list[tuple[str, Held]] | None:
        if id(parameter) not in self.ranges:
            return None
        flat = (getattr(tensor, "ds_tensor", tensor) if tensor is parameter else tensor).reshape(-1)
        return [(each.name, flat_range(flat[each.at : each.at + each.numel], each.shape, each.start))
                for each in self.ranges[id(parameter)]]  # fmt: skip


def _flattened(given: Any) -> Iterator[Any]:
    """The ShardedTensors, and their factories, of a nested state."""
    if isinstance(given, Mapping):
        for each in given.values():
            yield from _flattened(each)
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _flattened(each)
    elif hasattr(given, "replica_id") and isinstance(getattr(given, "data", None), Tensor):
        yield given


def _numbered(name: str, key: str, offsets: tuple[int, ...]) -> str:
    """A local name with the numbers that its layer, and its expert, have in the whole model: they stand in the key of
    its checkpoint, or are offsets there."""
    numbers = iter(offsets)

    def number(found: re.Match[str]) -> str:
        told = re.search(rf"(?<={found[1]}\.)\d+", key)
        return f"{found[1]}.{told[0] if told else next(numbers, found[2])}"

    return re.sub(r"(layers|experts)\.(\d+)", number, name)
