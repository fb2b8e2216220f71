"""Weights as a run leaves them to others: in the dtype that was asked for, and in files that have all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from contracts import instruments
from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.folders import folder
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS
from contracts.law._support.training_run import drawn_weights, table
from contracts.spec import Arrays, Checkpointing, Element, Recipe, Training

if TYPE_CHECKING:
    from contracts.instruments.safetensors_files import Export

TRAINED: dict[str, Element] = {"embedding.weight": "float32", "layers.0.mixer.wq.weight": "bfloat16"}
COUNTED = 2**31 + 7
"""A counter of tokens, which no float of 32 bits holds."""
DTYPES: dict[str, tuple[Element]] = {each: (each,) for each in ("float32", "bfloat16", "float16")}


@contract("CKPT-06f", asks="export_weights", cases=DTYPES, source="torchtitan #4166")
def an_export_has_the_dtype_that_was_asked_for(stack: Checkpointing, dtype: Element) -> None:
    """Every weight of an export has the dtype that was asked for, whatever dtype training held it in, and its values
    are rounded once. Whole numbers keep dtype and value.

    What skips the conversion where float32 is asked for leaves bfloat16 as it is, and who reads the files as float32
    takes two weights for one. A counter of tokens in bfloat16 is off by millions.
    """
    import torch

    numerics = instruments.numerics
    held = {name: torch.linspace(-1.7, 1.3, 24).view(4, 6).to(getattr(torch, each)) for name, each in TRAINED.items()}
    counter = torch.tensor([COUNTED, 3])
    got = stack.export_weights(numerics.arrays({**held, "layers.1.mixer.seen": counter}), dtype)
    want = {name: each.to(getattr(torch, dtype)) for name, each in held.items()}
    words = saved_states.bit_difference(got, numerics.arrays({**want, "layers.1.mixer.seen": counter}))
    assert not words, f"exported in {dtype}, {words}"


PLAIN = replace(DENSE, name="plain", qk_norm=False)
TIED = replace(PLAIN, name="plain-tied", untied_embeddings=False)
FILES: dict[str, tuple[Recipe, int]] = {
    "plain-in-three": (PLAIN, 3),
    "tied-in-three": (TIED, 3),
    "tied-in-one": (TIED, 1),
    "experts-in-three": (GROUPED_EXPERTS, 3),
}


class Exporting(Training, Checkpointing, Protocol):
    """A stack that has models and exports them."""


@contract("CKPT-06g", asks=("built", "export_model"), cases=FILES,
          needs={"": (), "experts-in-three": ("experts",)}, source="torchtitan #3764")  # fmt: skip
def an_index_names_what_the_files_have(stack: Exporting, recipe: Recipe, files: int) -> None:
    """Every tensor of an exported model is in one file, and the index names that file, no other tensor, and the sum of
    all bytes. The files have each element of the model once; those of a tied embedding may be there twice.

    Who loads by the index looks for a tied output projection that was left out of the files, or never opens a file that
    it forgets: weights are drawn anew, with a warning at most.
    """
    weights = drawn_weights(table(stack, recipe))
    numerics = instruments.numerics
    given = {name: numerics.array(numerics.tensor(each).float()) for name, each in weights.items()}
    with folder() as at:
        written = Path(stack.export_model(str(at), recipe, given, files))
        try:
            found = instruments.safetensors_files.read(written)
        except ValueError as error:
            raise AssertionError(f"who loads the export is refused: {error}") from None
    assert found.files, "no file of safetensors was written"
    assert len(found.files) == 1 or found.places is not None, f"there are {len(found.files)} files and no index"
    words = _unlike_its_files(found) or _other_elements(found, given)
    assert not words, words


def _unlike_its_files(found: Export) -> str:
    """How an index differs from its files."""
    stands = [(name, file) for file, tensors in found.files.items() for name in tensors]
    twice = sorted({name for name, _ in stands if sum(name == each for each, _ in stands) > 1})
    if twice:
        return f"{', '.join(twice)} stands in two files"
    if found.places is None:
        return ""
    for name, file in sorted({*found.places.items(), *stands}):
        if (name, file) not in stands:
            return f"the index names {name} in {file}, which does not have it"
        if found.places.get(name) != file:
            return f"{name} of {file} is not in the index"
    size = sum(len(each.data) for tensors in found.files.values() for each in tensors.values())
    return "" if found.total == size else f"the index says that all have {found.total} bytes, and they have {size}"


def _other_elements(found: Export, given: Arrays) -> str:
    """How the elements of all files, in any order, differ from those of a model."""
    import torch

    numerics = instruments.numerics
    held = [numerics.tensor(each) for tensors in found.files.values() for each in tensors.values()]
    have = torch.cat([each.flatten().double() for each in held]).sort().values
    model = torch.cat([numerics.tensor(each).flatten().double() for each in given.values()])
    embedding = numerics.tensor(given["embedding.weight"]).flatten().double()
    twice = torch.cat([model, embedding]) if "head.weight" not in given else model
    if any(have.equal(each.sort().values) for each in (model, twice)):
        return ""
    return f"the files have {len(have)} elements, the model {len(model)}, and they are others"
