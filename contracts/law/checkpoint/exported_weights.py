"""Weights as a run leaves them to others: in the dtype that was asked for, in files that have all of them, and under
the names of other formats, with a wrapper's prefix or with one tensor per expert."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from contracts.contract import contract
from contracts.instruments import numerics, safetensors_files
from contracts.law._support import saved_states
from contracts.law._support.late import torch
from contracts.law._support.saved_states import FAMILIES, folder
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS
from contracts.law._support.training_run import drawn_weights, table
from contracts.spec import Array, Arrays, Checkpointing, Element, Recipe, Training

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

    An export that skips the conversion if float32 is asked for leaves bfloat16 as it is, and who reads the files as
    float32 takes two weights for one. A counter of tokens in bfloat16 is off by millions.
    """
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
    given = {name: numerics.array(numerics.tensor(each).float()) for name, each in weights.items()}
    with folder() as at:
        written = Path(stack.export_model(str(at), recipe, given, files))
        try:
            found = safetensors_files.read(written)
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
    held = [numerics.tensor(each) for tensors in found.files.values() for each in tensors.values()]
    have = torch.cat([each.flatten().double() for each in held]).sort().values
    model = torch.cat([numerics.tensor(each).flatten().double() for each in given.values()])
    embedding = numerics.tensor(given["embedding.weight"]).flatten().double()
    twice = torch.cat([model, embedding]) if "head.weight" not in given else model
    if any(have.equal(each.sort().values) for each in (model, twice)):
        return ""
    return f"the files have {len(have)} elements, the model {len(model)}, and they are others"


RENAMED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # names in the file → names without the wrappers
    "compiled": (("_orig_mod.head.weight", "_orig_mod.norm.weight"), ("head.weight", "norm.weight")),
    "wrapped-twice": (("module.module.layers.0.mixer.wq.weight",), ("layers.0.mixer.wq.weight",)),
    "a-block-by-itself": (("layers.3._orig_mod.mixer.w1.weight",), ("layers.3.mixer.w1.weight",)),
    "begins-with-the-same-letters": (
        ("module.mlp.w1.weight", "module.o.weight", "_orig_mod.model.d.weight", "modules.weight", "dule.mixer.A_log"),
        ("mlp.w1.weight", "o.weight", "model.d.weight", "modules.weight", "dule.mixer.A_log"),
    ),
    "bare": (("layers.1.mixer.router.bias", "mtp.0.module_norm.weight"),
             ("layers.1.mixer.router.bias", "mtp.0.module_norm.weight")),
}  # fmt: skip


@contract("CKPT-06c", asks="rename_weights", cases=RENAMED, source=FAMILIES)
def a_wrapper_leaves_the_rest_of_a_name_alone(
    stack: Checkpointing, names: tuple[str, ...], bare: tuple[str, ...]
) -> None:
    """Importing weights removes the prefixes of torch.compile, DDP and Megatron wherever they stand in a name, and no
    other letter.

    `name.lstrip("module.")` strips every leading m, o, d, u, l, e and dot: `module.mlp` becomes `p`.
    """
    tensors = {name: saved_states.constant((2,), number) for number, name in enumerate(names)}
    got = stack.rename_weights(tensors, "stacked")
    assert set(got) == set(bare), f"{sorted(names)} became {sorted(got)}, expected {sorted(bare)}"
    words = saved_states.bit_difference(
        got, {name: saved_states.constant((2,), number) for number, name in enumerate(bare)}
    )
    assert not words, f"the names were changed, and {words}"


TWELVE = tuple(range(12))
EXPERT_CASES: dict[str, tuple[tuple[int, ...], bool]] = {  # the experts' order in the file, whether names are wrapped
    "ascending": (TWELVE, False),
    "as-text": ((0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9), False),
    "wrapped": (TWELVE[::-1], True),
}


@contract("CKPT-06d", asks="rename_weights", cases=EXPERT_CASES, source=FAMILIES)
def expert_k_stands_at_place_k(stack: Checkpointing, order: tuple[int, ...], wrapped: bool) -> None:
    """Experts that are saved one by one are stacked by their number, and splitting the stack gives back the same names
    and tensors. Every other tensor, a router's bias included, is there once, unchanged.

    Sorted as text, expert 10 stands before 2: every router row then meets another expert, all shapes fit, and the loss
    rises only a little.
    """
    head = "module.layers.1.mixer" if wrapped else "layers.1.mixer"
    single = {f"{head}.experts.{k}.{w}": saved_states.constant((3, 2), k + at) for k in order for w, at in _WEIGHTS}
    rest = {
        "layers.1.mixer.router.bias": saved_states.constant((12,), 0.5),
        "layers.1.mixer.shared.w1.weight": saved_states.constant((3, 2), 7),
    }
    got = stack.rename_weights(single | rest, "stacked")
    want: Arrays = rest | {f"layers.1.mixer.experts.{w}": _rows(at) for w, at in _WEIGHTS}
    words = saved_states.bit_difference(got, want)
    assert not words, f"12 experts were stacked, and {words}"
    bare = {name.removeprefix("module."): each for name, each in single.items()}
    words = saved_states.bit_difference(stack.rename_weights(got, "per_expert"), bare | rest)
    assert not words, f"12 experts were taken apart, and {words}"


_WEIGHTS = (("w1", 0), ("w2", 100))


def _rows(at: int) -> Array:
    return numerics.array(torch.stack([torch.full((3, 2), float(k + at)) for k in TWELVE]))
