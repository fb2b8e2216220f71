"""Reads what a model was exported to: files of safetensors and their index, by the format's own rules.

Of each file, 8 bytes have the length of a header in JSON, which has dtype, shape and place of each tensor; places begin
at 0 and have no hole. https://huggingface.co/docs/safetensors. Nothing of the package is used.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.spec import Array, Element

INDEX = "model.safetensors.index.json"
DTYPES: dict[str, tuple[Element, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "BF16": ("bfloat16", 2), "F16": ("float16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "U8": ("uint8", 1), "BOOL": ("bool", 1),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Export:
    """What a folder has: tensors by file, and what its index says; None without an index."""

    files: dict[str, dict[str, Array]]
    places: dict[str, str] | None = None
    total: int | None = None


def read(folder: Path) -> Export:
    """Everything that the folder has.

    Raises:
        ValueError: for a file or an index that is not of the format, with the file.
    """
    files = {each.name: _tensors(each) for each in sorted(folder.glob("*.safetensors"))}
    index = folder / INDEX
    if not index.exists():
        return Export(files=files)
    try:
        said = json.loads(index.read_text(encoding="utf-8"))
        places, total = dict(said["weight_map"]), int(said["metadata"]["total_size"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{INDEX}: {type(error).__name__}: {error}") from None
    return Export(files=files, places=places, total=total)


def _tensors(file: Path) -> dict[str, Array]:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
        rows = {name: row for name, row in header.items() if name != "__metadata__"}
        by_place = sorted(rows.items(), key=lambda each: each[1]["data_offsets"][0])
        return _cut(by_place, memoryview(content)[8 + length :])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file.name}: {type(error).__name__}: {error}") from None


def _cut(by_place: list[tuple[str, Any]], data: memoryview) -> dict[str, Array]:
    found, end = {}, 0
    for name, row in by_place:
        (dtype, width), shape = DTYPES[row["dtype"]], tuple(map(int, row["shape"]))
        first, last = row["data_offsets"]
        if (first, last - first) != (end, width * math.prod(shape)) or last > len(data):
            raise ValueError(f"{name} {list(shape)} lies at {first} … {last}, expected from {end} on")
        found[name], end = Array(dtype=dtype, shape=shape, data=bytes(data[first:last])), last
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes belong to no tensor")
    return found
