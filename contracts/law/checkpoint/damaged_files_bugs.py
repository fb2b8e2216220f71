"""Readers that trust every file in the folder, and execute pickles."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Checkpoints, Manifest, ShardReader, broken, derived, mutant, with_attributes
from contracts.law._bugs.numeric import manifest as manifests
from contracts.spec import Refusals, Refused, codec, refuse


class _Believing(ShardReader):
    def fault_of(self, name: str, content: bytes) -> str:
        return ""


with_attributes(
    "ReadsUnchecked",
    "Compares no digest: the names, lengths and shapes of a damaged file are still right.",
    "CKPT-04c[corrupt]: was flipped in one bit, and the load went through, but",
    owner=_Believing,
)

with_attributes(
    "MixesSteps",
    "Accepts a shard of the step before, which has the same length: half of the experts are two steps old.",
    "CKPT-04c[mixed-steps]: was taken from step 2, and the load went through, but",
    owner=_Believing,
)


@derived("CKPT-04c[another-digit]: manifest.json of step 4 was altered in one digit, and")
class ReadsUnsealed(Checkpoints):
    """Compares the digests of the files with tensors, and none of the file that lists them."""

    def opened(self, step: int | None = None) -> Manifest:
        text = (self.folder / self.name_of(step or 0) / manifests.NAME).read_text(encoding="ascii")
        try:
            return codec.loads(Manifest, json.dumps(json.loads(text)["manifest"]), name="the list")
        except ValueError as error:
            raise self._refused(error) from None

    def read(self, folder: Path, manifest: Manifest, target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            return super().read(folder, manifest, target)
        except RuntimeError as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> Refused:
        return refuse("folder", str(self.folder), f"does not fit together: {error}", "load another one")


class _Padding(_Believing):
    def content_of(self, name: str) -> bytes:
        path = self.folder / name
        content = path.read_bytes() if path.exists() else b""
        return content.ljust(self.manifest.files[name].bytes, b"\0")


@mutant(of="CKPT-04c", case="missing", says="was removed, and the load went through, but", bugs=("RSM-48",))
@derived("CKPT-04c[truncated]: was cut off, and the load went through, but")
class PadsWithZeros(Checkpoints):
    """Maps the file into memory at its expected length; the missing bytes, or a missing file, read as zero."""

    reader = _Padding

    def damages(self, folder: Path, manifest: Manifest) -> Refusals:
        return Refusals()


@broken(Checkpoints, "load", "CKPT-04c[emptied]: was emptied, and the refusal does not name it")
def names_no_file(load, self, target, *, recipe="", step=None):
    """Raises the same error for everything: nobody learns which of 4096 files it is."""
    try:
        return load(self, target, recipe=recipe, step=step)
    except Refused:
        raise refuse("checkpoint", step, "cannot be loaded", "try another") from None


@broken(Checkpoints, "read", "CKPT-04c[corrupt]: the load was refused, but the target is not what it was")
def reads_into_the_target(read, self, folder, manifest, target):
    """Loads in place, tensor by tensor, and finds the damaged one when half of the others are loaded."""
    one_by_one = {}
    for name, held in manifest.tensors.items():
        alone = Manifest(
            step=manifest.step, save=manifest.save, recipe=manifest.recipe, position=manifest.position,
            tensors={name: held}, files=manifest.files,
        )  # fmt: skip
        one_by_one |= read(self, folder, alone, {name: target[name]})
        self.fill({name: target[name]}, one_by_one)
    return one_by_one


@derived("CKPT-04g[torch-files-beside]: and its pickle was executed")
class LooksIntoEverything(Checkpoints):
    """Tries torch.load on unknown files, with weights_only=False because an optimizer state once needed it."""

    def damages(self, folder: Path, manifest: Manifest) -> Refusals:
        self.look(folder)
        return super().damages(folder, manifest)

    def look(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            try:
                torch.load(path, weights_only=False)
            except Exception:  # not a torch file
                continue


def _old_form(path: Path) -> None:
    try:
        pickle.loads(path.read_bytes())
    except Exception:  # not of the old format either
        return


@broken(Checkpoints, "load", "CKPT-04g[pickle-in-place-of-a-file]: and its pickle was executed")
def reads_the_old_form(load, self, target, *, recipe="", step=None):
    """Takes a file that is not of this format for last year's format, which was a pickle."""
    try:
        return load(self, target, recipe=recipe, step=step)
    except Refused:
        for path in self.folder.rglob("*"):
            if path.is_file():
                _old_form(path)
        raise


@broken(Checkpoints, "latest", "CKPT-04g[nothing-but-pickles]: and its pickle was executed")
def reads_dcp_metadata(latest, self):
    """Reads DCP's pickled metadata just to list the checkpoints."""
    for path in self.folder.glob("*/.metadata"):
        _old_form(path)
    return latest(self)


@broken(manifests, "_seal", "CKPT-04c[another-digit]: was altered in one digit, and the load went through, but")
def seals_tensors_alone(seal, manifest):
    """The digest is of the tensors and the files: a counter may be another, and the run continues elsewhere."""
    return seal(replace(manifest, position={}))
