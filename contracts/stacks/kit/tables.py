"""The table of a built model (`spec.training.Built`), read off the shapes of its tensors under canonical names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from contracts.spec.training import Built, BuiltLayer, Parameter
from contracts.stacks.kit.roles import layer_of, role_of

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter."""
Shapes = Mapping[str, Iterable[int]]


def built(parameters: Shapes, buffers: Shapes, decays: Mapping[str, float]) -> Built:
    """The model whose tensors have these names and shapes, trained by AdamW in float32.

    Args:
        decays: the weight decay of each parameter, as the stack's optimizer has it.
    """
    rows = tuple(
        Parameter(
            name=name, shape=tuple(shape), dtype="float32", compute="float32", role=role_of(name), layer=layer_of(name),
            optimizer="adamw", weight_decay=decays[name], state=dict.fromkeys(MOMENTS, "float32"),
        )
        for name, shape in parameters.items()
    )  # fmt: skip
    numbers = sorted({row.layer for row in rows if row.layer is not None})
    tied = "head.weight" not in parameters
    return Built(
        layers=tuple(_layer(number, [row for row in rows if row.layer == number], buffers) for number in numbers),
        parameters=rows,
        features=frozenset({"tied_embeddings" if tied else "untied_embeddings"}),
        buffers={name: tuple(shape) for name, shape in buffers.items()},
    )


def _layer(number: int, rows: list[Parameter], buffers: Iterable[str]) -> BuiltLayer:
    begin = f"layers.{number}.mixer."
    shapes = {row.name.removeprefix(begin): row.shape for row in rows}
    family = "M" if "A_log" in shapes else "A" if "wo.weight" in shapes else "E"
    gated = {"w3.weight", "experts.w3"} & shapes.keys()
    found = {
        "rope": family == "A",
        "mla": "wkv_a.weight" in shapes,
        "dsa": "indexer.wk.weight" in shapes,
        "gqa": "wk.weight" in shapes and shapes["wk.weight"] != shapes["wq.weight"],
        "qk_norm": "k_norm.weight" in shapes,
        "moe": "router.weight" in shapes,
        "shared_expert": "shared.w1.weight" in shapes,
        "selection_bias": f"{begin}router.bias" in buffers,
        "swiglu": family == "E" and gated,
        "relu2": family == "E" and not gated,
        "mamba2": family == "M",
    }
    return BuiltLayer(
        number=number, family=family, features=frozenset(name for name, there in found.items() if there),
        parameters=sum(math.prod(row.shape) for row in rows),
    )  # fmt: skip
