"""Tensors in files, for `torch.distributed.checkpoint` (DCP): its plans, its resharding, and no pickle of its own.

DCP decides who writes what and who reads which part of it, for one process or many; these two classes put it on a disk.
Its own `FileSystemReader` unpickles `.metadata` and each tensor, and its safetensors storage needs a package and trusts
whatever lies in the folder. A file here is a line of JSON that says to which save it belongs, and then raw elements,
little-endian, row-major; the manifest says what they are. What is read is digested before it is believed.
"""

import ctypes
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from contracts.spec import Element, Refusals, refuse
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import REMEDY, Manifest, Piece, StoredFile, StoredTensor, digest


@dataclass(frozen=True)
class _Share:
    """What the coordinator sends one rank."""

    rank: int
    folder: str
    save: str


@dataclass(frozen=True)
class _Stored:
    """The place of one tensor of the plan, and the files that the rank has written so far."""

    pieces: tuple[Piece, ...]
    files: Mapping[str, StoredFile]


Publish = Callable[[str, Mapping[str, StoredTensor], Mapping[str, StoredFile]], None]
"""Takes the save, its tensors by name and its files by name."""


class ShardWriter(StorageWriter):
    """Writes each rank's share to files of its own; the coordinator publishes what all of them have written.

    Args:
        folder: the unfinished one; the coordinator makes it.
        publish: called once, by the coordinator, when every rank's files are durable.
    """

    def __init__(self, folder: Path, disk: Disk, *, step: int, file_bytes: int, publish: Publish) -> None:
        self.folder, self.disk, self.step, self.file_bytes, self.publish = folder, disk, step, file_bytes, publish
        self.save = ""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise refuse(item.index.fqn, "an object", "is no tensor, and would be pickled", "save a tensor")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self.save = uuid.uuid4().hex
        self.disk.make(self.folder)
        return [
            replace(plan, storage_data=_Share(rank, str(self.folder), self.save)) for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        share = cast(_Share, plan.storage_data)
        head = json.dumps({"step": self.step, "save": share.save}).encode("ascii") + b"\n"
        files: dict[str, StoredFile] = {}
        pieces: dict[int, list[Piece]] = {number: [] for number in range(len(plan.items))}
        for count, batch in enumerate(_batches(plan, planner, self.file_bytes)):
            name = f"shard-{share.rank:05d}-{count:05d}.bin"
            parts, start = [head], len(head)
            for number, offsets, box in batch:
                raw = _raw(box)
                pieces[number].append(Piece(offsets=offsets, sizes=tuple(box.shape), file=name, start=start))
                parts.append(raw)
                start += len(raw)
            self.disk.write(Path(share.folder) / name, [b"".join(parts)])
            files[name] = StoredFile(bytes=start, sha256=digest(parts))
        if files:
            self.disk.sync(Path(share.folder))  # the names, from the node that gave them
        results = [
            WriteResult(index=item.index, size_in_bytes=0, storage_data=_Stored(tuple(pieces[number]), files))
            for number, item in enumerate(plan.items)
        ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        placed: dict[str, list[Piece]] = {}
        files: dict[str, StoredFile] = {}
        for result in (each for rank in results for each in rank):
            stored = cast(_Stored, result.storage_data)
            placed.setdefault(result.index.fqn, []).extend(stored.pieces)
            files |= stored.files
        tensors = {}
        for name, known in metadata.state_dict_metadata.items():
            whole = cast(TensorStorageMetadata, known)
            dtype = cast(Element, str(whole.properties.dtype).removeprefix("torch."))
            tensors[name] = StoredTensor(dtype=dtype, shape=tuple(whole.size), pieces=tuple(placed.get(name, ())))
        self.publish(self.save, tensors, files)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: a writer is made for one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: the coordinator has it in the plan."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _batches(
    plan: SavePlan, planner: SavePlanner, file_bytes: int
) -> Iterator[list[tuple[int, tuple[int, ...], Tensor]]]:
    """What goes into each file: number of the item, offsets in the whole tensor, elements on the host."""
    batch: list[tuple[int, tuple[int, ...], Tensor]] = []
    room = file_bytes
    for number, item in enumerate(plan.items):
        tensor = cast(Tensor, planner.resolve_data(item)).detach().cpu().contiguous()
        assert item.tensor_data is not None, item.index.fqn
        first = tuple(item.tensor_data.chunk.offsets)
        for row, box in _cut(tensor, file_bytes):
            if batch and box.nbytes > room:
                yield batch
                batch, room = [], file_bytes
            batch.append((number, (first[0] + row, *first[1:]) if first else (), box))
            room -= box.nbytes
    if batch:
        yield batch


def _cut(tensor: Tensor, file_bytes: int) -> Iterator[tuple[int, Tensor]]:
    """Runs of rows of at most `file_bytes`, or one row where that is more."""
    if tensor.dim() == 0 or tensor.nbytes <= file_bytes:
        yield 0, tensor
        return
    rows = max(1, file_bytes // (tensor.nbytes // len(tensor)))
    for row in range(0, len(tensor), rows):
        yield row, tensor[row : row + rows]


def _raw(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""  # numpy may not be installed


class ShardReader(StorageReader):
    """Reads the parts that DCP's plan asks for; refuses a file that is not the one that was written."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.pieces = {
            MetadataIndex(name, piece.offsets): piece
            for name, held in manifest.tensors.items()
            for piece in held.pieces
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(state_dict_metadata={name: _described(held) for name, held in self.manifest.tensors.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: the manifest was read before."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.pieces[item.storage_index].file, []).append(item)
        found = Refusals()
        for name, items in by_file.items():
            content = self.content_of(name)
            words = self.fault_of(name, content)
            if words:
                found.add(name, str(self.folder), words, REMEDY)
                continue
            for item in items:
                self.place(content, item, planner)
        found.raise_any()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def content_of(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def fault_of(self, name: str, content: bytes) -> str:
        """Why a file is not the one that was written; empty when it is."""
        if digest([content]) == self.manifest.files[name].sha256:
            return ""
        try:
            head = json.loads(content[: content.index(b"\n")])
            step, save = head["step"], head["save"]
        except (ValueError, KeyError, TypeError):
            return "is corrupt: its digest differs, and it does not begin as a file of a checkpoint does"
        if (step, save) != (self.manifest.step, self.manifest.save):
            return f"belongs to another save: it is of step {step}, the manifest of step {self.manifest.step}"
        return "is corrupt: its digest differs"

    def place(self, content: bytes, item: ReadItem, planner: LoadPlanner) -> None:
        """Copy one part of a file to where the plan wants it."""
        piece = self.pieces[item.storage_index]
        held = self.manifest.tensors[item.storage_index.fqn]
        dtype = cast(torch.dtype, getattr(torch, held.dtype))
        length = prod(piece.sizes) * dtype.itemsize
        raw = bytearray(content[piece.start : piece.start + length])
        box = torch.frombuffer(raw, dtype=dtype).reshape(piece.sizes) if raw else torch.empty(piece.sizes, dtype=dtype)
        for dim, (offset, size) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            box = box.narrow(dim, offset, size)
        target = planner.resolve_tensor(item).detach()
        target.copy_(box)
        planner.commit_tensor(item, target)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: a reader is made for one load."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _described(held: StoredTensor) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, held.dtype)),
        size=torch.Size(held.shape),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.sizes))
            for piece in held.pieces
        ],
    )
