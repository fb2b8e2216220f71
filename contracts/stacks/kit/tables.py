"""The table of a built model (`spec.training.Built`), read off its tensors under canonical names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from contracts.spec import Built, BuiltLayer, Parameter, Rule
from contracts.stacks.kit.roles import layer_of, role_of

if TYPE_CHECKING:
    from torch import Tensor

STATE: Mapping[Rule, tuple[str, ...]] = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}
"""What a rule keeps of a parameter."""
MOMENTS = STATE["adamw"]


def built(
    parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], decays: Mapping[str, float],
    muon: Collection[str] = (),
) -> Built:  # fmt: skip
    """The model that has these tensors, each used in the dtype in which it is held.

    Args:
        decays: the weight decay of each parameter, as the stack's optimizer has it. One that is not there has no rule.
        muon: what Muon moves; AdamW moves the others.
    """
    rows = tuple(
        _row(name, each, decays.get(name), "muon" if name in muon else "adamw") for name, each in parameters.items()
    )
    numbers = sorted({row.layer for row in rows if row.layer is not None})
    tied = "head.weight" not in parameters
    ahead = {"mtp"} if any(name.startswith("mtp.") for name in parameters) else set()
    return Built(
        layers=tuple(_layer(number, [row for row in rows if row.layer == number], buffers) for number in numbers),
        parameters=rows,
        features=frozenset({"tied_embeddings" if tied else "untied_embeddings", *ahead}),
        buffers={name: tuple(each.shape) for name, each in buffers.items()},
    )


def _row(name: str, tensor: Tensor, decay: float | None, rule: Rule) -> Parameter:
    dtype: Any = str(tensor.dtype).removeprefix("torch.")
    return Parameter(
        name=name, shape=tuple(tensor.shape), dtype=dtype, compute=dtype, role=role_of(name), layer=layer_of(name),
        optimizer=None if decay is None else rule, weight_decay=decay or 0.0,
        state={} if decay is None else dict.fromkeys(STATE[rule], dtype),
    )  # fmt: skip


def _layer(number: int, rows: list[Parameter], buffers: Iterable[str]) -> BuiltLayer:
    begin = f"layers.{number}.mixer."
    every = {row.name.removeprefix(begin): row.shape for row in rows}
    beside = {name.removeprefix("ssm."): shape for name, shape in every.items() if name.startswith("ssm.")}
    shapes = {name.removeprefix("attention."): shape for name, shape in every.items() if not name.startswith("ssm.")}
    letters = {"wf.weight": "R", "wz.weight": "M", "wo.weight": "A"}  # a tensor that no family after it has → family
    family = next((letter for name, letter in letters.items() if name in shapes), "E")
    gated = {"w3.weight", "experts.w3"} & shapes.keys()
    scan = shapes if family == "M" else beside
    found = {
        "mhc": f"layers.{number}.streams.alpha" in shapes,
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
        "parallel_ssm": bool(beside),
        "mamba2": "A_log" in scan,
        "mamba3": bool(scan) and "A_log" not in scan,
        "m2rnn": family == "R",
    }
    return BuiltLayer(
        number=number, family=family, features=frozenset(name for name, there in found.items() if there),
        parameters=sum(math.prod(row.shape) for row in rows),
    )  # fmt: skip
