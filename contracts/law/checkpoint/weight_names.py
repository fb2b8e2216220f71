"""Weights under the names of other file formats: with a wrapper's prefix, or with one tensor per expert."""

from contracts import instruments
from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.saved_states import FAMILIES
from contracts.spec import Array, Arrays, Checkpointing

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
    and tensors. Every other tensor, a router's bias included, comes through once.

    Sorted as text, expert 10 stands before 2: every router row then meets another expert, all shapes fit, and the loss
    rises only a little.
    """
    head = "module.layers.1.mixer" if wrapped else "layers.1.mixer"
    single = {f"{head}.experts.{k}.{w}": saved_states.constant((3, 2), k + at) for k in order for w, at in _WEIGHTS}
    rest = {
        "layers.1.mixer.router.bias": saved_states.constant((12,), 0.5),
        "layers.1.mixer.shared.w1.weight": _filled(7),
    }
    got = stack.rename_weights(single | rest, "stacked")
    want: Arrays = rest | {f"layers.1.mixer.experts.{w}": _rows(at) for w, at in _WEIGHTS}
    words = saved_states.bit_difference(got, want)
    assert not words, f"12 experts were stacked, and {words}"
    bare = {name.removeprefix("module."): each for name, each in single.items()}
    words = saved_states.bit_difference(stack.rename_weights(got, "per_expert"), bare | rest)
    assert not words, f"12 experts were taken apart, and {words}"


_WEIGHTS = (("w1", 0), ("w2", 100))


def _filled(value: float) -> Array:
    return saved_states.constant((3, 2), value)


def _rows(at: int) -> Array:
    import torch

    return instruments.numerics.array(torch.stack([torch.full((3, 2), float(k + at)) for k in TWELVE]))
