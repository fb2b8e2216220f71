"""Transformer Engine's modules in place of matrices and of the experts' products.

They are called on our own parameters, so that weights and gradients keep their names. State of delayed scaling is then
Transformer Engine's, not ours. Asks for 2.x; looked up at the source of 2.12 and 2.20.

S rows · I inputs · O outputs · E experts
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from contracts.spec import Fp8


def linear(matrix: nn.Linear, fp8: Fp8 | None) -> Callable[[Tensor], Tensor]:
    """x wᵀ by `te.Linear`."""
    te = _package()
    bridge = te.Linear(matrix.in_features, matrix.out_features, bias=False, params_dtype=matrix.weight.dtype)

    def apply(x: Tensor) -> Tensor:
        with _precision(x, fp8):
            y: Tensor = functional_call(bridge, {"weight": matrix.weight}, (x,))
        return y

    return apply


def grouped(weight_EOI: nn.Parameter, fp8: Fp8 | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Rows sorted by expert, each times its expert's matrix, by `te.GroupedLinear`; rows after the last end are 0."""
    te = _package()
    experts, outputs, inputs = weight_EOI.shape
    bridge = te.GroupedLinear(experts, inputs, outputs, bias=False, params_dtype=weight_EOI.dtype)

    def apply(x_SI: Tensor, ends_E: Tensor) -> Tensor:
        ends = [0, *ends_E.tolist()]
        counts = [end - begin for begin, end in itertools.pairwise(ends)]
        named = {f"weight{expert}": weight_OI for expert, weight_OI in enumerate(weight_EOI)}
        with _precision(x_SI, fp8):
            y_SO: Tensor = functional_call(bridge, named, (x_SI[: ends[-1]], counts))
        return torch.cat([y_SO, x_SI.new_zeros(len(x_SI) - ends[-1], outputs)])

    return apply


@contextlib.contextmanager
def _precision(x: Tensor, fp8: Fp8 | None) -> Iterator[None]:
    """The dtype of the activations, over parameters that are held in float32, and FP8 where it is asked for.

    `fp8_autocast(fp8_recipe=)` is called `autocast(recipe=)` from 2.8 on, and the old name warns from 2.20 on.
    """
    te = _package()
    with torch.autocast("cuda", dtype=x.dtype, enabled=x.dtype != torch.float32):
        if hasattr(te, "autocast"):
            with te.autocast(enabled=fp8 is not None, recipe=_recipe(fp8)):
                yield
        else:
            with te.fp8_autocast(enabled=fp8 is not None, fp8_recipe=_recipe(fp8)):
                yield


def _recipe(fp8: Fp8 | None) -> Any:
    if fp8 is None:
        return None
    from transformer_engine.common import recipe as recipes  # type: ignore[import-not-found]

    form = {"hybrid": recipes.Format.HYBRID, "e4m3": recipes.Format.E4M3}[fp8.format]
    kinds = {
        "tensorwise": recipes.Float8CurrentScaling, "delayed": recipes.DelayedScaling,
        "blockwise": recipes.Float8BlockScaling, "mxfp8": recipes.MXFP8BlockScaling,
    }  # fmt: skip
    return kinds[fp8.scaling](fp8_format=form)


def _package() -> Any:
    import transformer_engine.pytorch as te  # type: ignore[import-not-found]

    return te
