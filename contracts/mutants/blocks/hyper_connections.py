"""Hyper-connections that read, write or mix the streams wrongly."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Output, Packing
from contracts.stacks.reference.model.blocks.hyper_connections import ROUNDS, HyperConnections
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.parts_interface import PartsInterface


class Transposed(HyperConnections):
    def write(self, streams_BTND: Tensor, y_BTD: Tensor, post_BTN: Tensor, res_BTNN: Tensor) -> Tensor:
        return super().write(streams_BTND, y_BTD, post_BTN, res_BTNN.mT)


@mutant(of="BLK-06m", case="three-streams", says="logits differs")
class MixesStreamsTransposed(Exchanged):
    """H_res is applied transposed: as doubly stochastic as before, and another model."""

    exchange = {"streams": Transposed}


class _UsualEpsilon(HyperConnections):
    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__(recipe, parts)
        self.eps = 1e-5


@mutant(of="BLK-06m", case="wide-eps", says="logits differs")
class NormsStreamsByTheUsualEpsilon(Exchanged):
    """The norm of the streams has no weight, is no module, and does not know the recipe's epsilon."""

    exchange = {"streams": _UsualEpsilon}


class OneRound(HyperConnections):
    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        matrix = logits_BTNN.softmax(-1)
        return matrix / matrix.sum(-2, keepdim=True)


@mutant(of="BLK-06m", case="two-streams", says="logits differs")
class SinkhornOfOneRound(Exchanged):
    """Sinkhorn runs one round instead of twenty: columns sum to 1, rows do not."""

    exchange = {"streams": OneRound}


class WholeSigmoid(HyperConnections):
    def forward(self, streams_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pre_BTN, post_BTN, res_BTNN = super().forward(streams_BTND)
        return pre_BTN, post_BTN / 2, res_BTNN


@mutant(of="BLK-06m", case="under-prediction-heads", says="logits differs")
class WritesHalf(Exchanged):
    """h_post lacks its factor of 2."""

    exchange = {"streams": WholeSigmoid}


class OneMapForAll(HyperConnections):
    def maps(self, streams_BTND: Tensor) -> Tensor:
        return super().maps(streams_BTND.mean(1, keepdim=True)).expand(-1, streams_BTND.shape[1], -1)


@mutant(of="BLK-06m", case="three-streams", says="logits differs")
class MapsOfTheWholeRow(Exchanged):
    """One map per row, computed from the mean of all its tokens, later ones included."""

    exchange = {"streams": OneMapForAll}


class Detached(HyperConnections):
    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        with torch.no_grad():
            return super().mixing(logits_BTNN)


@mutant(of="BLK-06m", case="three-streams", says="the gradient of layers.1.streams.alpha differs")
class SinkhornWithoutGradient(Exchanged):
    """Sinkhorn runs without gradient, so the logits of H_res do not train."""

    exchange = {"streams": Detached}


class RowsAlone(HyperConnections):
    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        return logits_BTNN.softmax(-1)


@mutant(of="BLK-06n", case="three-streams", says="the logits of a plain residual differs")
class MixesByASoftmax(Exchanged):
    """H_res is a softmax: rows sum to 1 and columns do not, so the residual grows or fades."""

    exchange = {"streams": RowsAlone}


class ReadsTheFirst(Layer):
    def forward(self, x: Tensor, packing: Packing) -> Output:
        if self.streams is not None or x.dim() == 3:
            return super().forward(x, packing)
        out = self.branch(x[..., 0, :], packing)
        return out._replace(y_BTD=x + out.y_BTD.unsqueeze(-2))


@mutant(of="BLK-06n", case="four-streams", says="the logits of a plain residual differs")
class PlainLayersReadOneStream(Exchanged):
    """A layer without maps reads stream 0 instead of the mean."""

    exchange = {"layer": ReadsTheFirst}


class Summed(Layer):
    def forward(self, x: Tensor, packing: Packing) -> Output:
        out = super().forward(x, packing)
        return out if self.streams is not None or x.dim() == 3 else out._replace(y_BTD=out.y_BTD + x)


@mutant(of="BLK-06n", case="every-stream-alike", says="the logits of a plain residual differs")
class AddsTheStreamsTwice(Exchanged):
    """A layer without maps adds the residual a second time."""

    exchange = {"layer": Summed}


class EndsOnTheLast(Model):
    def narrow(self, x: Tensor) -> Tensor:
        return x if x.dim() == 3 else x[..., -1, :]


@mutant(of="BLK-06o", case="two-streams", says="the logits with permuted streams differs")
class EndsOnTheLastStream(Exchanged):
    """The output projection reads one stream instead of their mean."""

    exchange = {"model": EndsOnTheLast}


class ByColumns(HyperConnections):
    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        first = logits_BTNN.flatten(-2).softmax(-1).view_as(logits_BTNN)
        rest = first.cumsum(-1)
        return rest / rest.sum(-2, keepdim=True)


@mutant(of="BLK-06o", case="three-streams", says="the logits with permuted streams differs")
class MixesByRank(Exchanged):
    """A later stream also receives what earlier streams received, so the order of streams matters."""

    exchange = {"streams": ByColumns}


def _rounded(value: Tensor) -> Tensor:
    """What bfloat16 leaves of a value; one in float64 is nobody's under autocast."""
    return value if value.dtype == torch.float64 else value.bfloat16().to(value.dtype)


class _HalfNorm(HyperConnections):
    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__(recipe, parts)
        self.phi.register_forward_pre_hook(lambda _, given: (_rounded(given[0]),))


@mutant(of="BLK-06w", case="one-layer", says="logits under bfloat16 are off by")
class NormsStreamsInBfloat16(Exchanged):
    """The norm in front of the maps runs in the dtype of the streams."""

    exchange = {"streams": _HalfNorm}


class _HalfProjection(HyperConnections):
    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__(recipe, parts)
        self.phi.register_forward_hook(lambda _, __, mapped: _rounded(mapped))


@mutant(of="BLK-06w", case="two-layers", says="logits under bfloat16 are off by")
class ProjectsStreamsInBfloat16(Exchanged):
    """The projection of the streams to their maps runs under autocast."""

    exchange = {"streams": _HalfProjection}


class _WithoutLogarithms(HyperConnections):
    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        matrix = logits_BTNN.exp()
        for _ in range(ROUNDS):
            matrix = matrix / matrix.sum(-1, keepdim=True)
            matrix = matrix / matrix.sum(-2, keepdim=True)
        return matrix


@mutant(of="BLK-06n", case="saturated", says="the logits of a plain residual")
class SinkhornOverflows(Exchanged):
    """Sinkhorn begins with exp of the logits as they are (Megatron-LM's `native_sinkhorn`)."""

    exchange = {"streams": _WithoutLogarithms}


class _ShiftsRows(HyperConnections):
    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        matrix = (logits_BTNN - logits_BTNN.amax(-1, keepdim=True)).exp()
        for _ in range(ROUNDS):
            matrix = matrix / matrix.sum(-1, keepdim=True).clamp(min=1e-6)
            matrix = matrix / matrix.sum(-2, keepdim=True).clamp(min=1e-6)
        return matrix


@mutant(of="BLK-06n", case="saturated", says="the logits of a plain residual")
class SinkhornLosesAColumn(Exchanged):
    """Over-correction: rows are shifted by their largest logit, and a column of zeros is divided by a small number in
    place of its sum (Megatron-LM #3828)."""

    exchange = {"streams": _ShiftsRows}
