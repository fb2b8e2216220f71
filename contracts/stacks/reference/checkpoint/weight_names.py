"""Names of weights in files of others: experts in one tensor or one by one, with or without the prefix of a wrapper."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contracts.spec import Naming, Refusals

WRAPPERS = ("module.", "_orig_mod.")
"""What DDP and Megatron's Float16Module, and torch.compile, put before a name; each may stand there more than once."""

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
}  # fmt: skip
_EXPERT = re.compile(r"(?P<head>.*\bexperts)\.(?P<number>[0-9]+)\.(?P<tail>[^.]+)")
_STACK = re.compile(r"(?P<head>.*\bexperts)\.(?P<tail>w[0-9]+)")


class WeightNames:
    """Renames the weights of a model; every tensor comes out once, whatever its role."""

    def rename(self, tensors: Mapping[str, Tensor], naming: Naming) -> dict[str, Tensor]:
        """Tensors under the names of one format.

        Raises:
            Refused: when two tensors get one name, or experts do not count from 0 without a gap.
        """
        plain = self.unwrapped(tensors)
        return self.stacked(plain) if naming == "stacked" else self.per_expert(plain)

    def unwrapped(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found, plain = Refusals(), dict[str, Tensor]()
        for name, tensor in tensors.items():
            bare = self.bare(name)
            found.unless(bare not in plain, "name", name, f"becomes {bare}, as another does", "save one of the two")
            plain[bare] = tensor
        found.raise_any()
        return plain

    def bare(self, name: str) -> str:
        """The name without wrappers, wherever in it they stand: a block that is compiled by itself has one inside."""
        parts = name.split(".")
        wrappers = {each.rstrip(".") for each in WRAPPERS}
        return ".".join(part for part in parts if part not in wrappers)

    def exported(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Floating-point numbers in another dtype; counters and the like keep theirs."""
        return {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}

    def written(self, folder: Path, tensors: Mapping[str, Tensor], files: int) -> None:
        """Write tensors as safetensors, with an index if there are several files."""
        parts = self.dealt(tensors, files)
        names = {at: f"model-{at + 1:05d}-of-{files:05d}.safetensors" if files > 1 else ONE_FILE for at in range(files)}
        for at, part in enumerate(parts):
            (folder / names[at]).write_bytes(_safetensors(part))
        if files > 1:
            places = {name: names[at] for at, part in enumerate(parts) for name in part}
            (folder / INDEX).write_text(json.dumps(self.index(parts, places)), encoding="utf-8")

    def dealt(self, tensors: Mapping[str, Tensor], files: int) -> list[dict[str, Tensor]]:
        """The tensors of each file."""
        return [dict([*tensors.items()][at::files]) for at in range(files)]

    def index(self, parts: Sequence[Mapping[str, Tensor]], places: Mapping[str, str]) -> dict[str, Any]:
        """What an index of files says."""
        total = sum(each.nbytes for part in parts for each in part.values())
        return {"metadata": {"total_size": total}, "weight_map": dict(places)}

    def stacked(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows: dict[str, dict[int, Tensor]] = {}
        plain: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            match = _EXPERT.fullmatch(name)
            if match is None:
                plain[name] = tensor
            else:
                rows.setdefault(f"{match['head']}.{match['tail']}", {})[int(match["number"])] = tensor
        found = Refusals()
        for name, experts in rows.items():
            whole = sorted(experts) == list(range(len(experts)))
            found.unless(whole, name, sorted(experts), "are not all experts from 0 on", "give every expert")
        found.raise_any()
        return plain | {name: self.stack(experts) for name, experts in rows.items()}

    def stack(self, experts: Mapping[int, Tensor]) -> Tensor:
        """(experts, …), by number: as text, 10 comes before 2."""
        return torch.stack([experts[number] for number in sorted(experts)])

    def per_expert(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            match = _STACK.fullmatch(name)
            if match is None:
                found[name] = tensor
            else:
                found |= {f"{match['head']}.{number}.{match['tail']}": each for number, each in enumerate(tensor)}
        return found


def _safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file: the length of a header, the header, and the bytes of each tensor at the place that it names."""
    header, end = {}, 0
    for name, each in tensors.items():
        place = [end, end := end + each.nbytes]
        header[name] = {"dtype": _DTYPES[each.dtype], "shape": list(each.shape), "data_offsets": place}
    text = json.dumps(header).encode()
    data = (each.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for each in tensors.values())
    return b"".join([len(text).to_bytes(8, "little"), text, *data])
