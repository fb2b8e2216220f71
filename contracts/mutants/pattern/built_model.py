"""Models whose layers, residuals or sizes differ from the recipe's."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.capacity import ParameterCount
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Built
from contracts.stacks.reference.model.blocks.common import Output, Packing
from contracts.stacks.reference.model.blocks.m2rnn import M2RNN
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.model.parts_interface import PartsInterface
from contracts.stacks.reference.stack import Reference


@mutant(of="PAT-12a", case="recurrence-first", says="built RAMRAM, the pattern is RAMRAMR", bugs=("HYB-07",))
class BuildsWholePeriods(Reference):
    """The tail of the pattern is dropped."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        period = len(recipe.pattern.replace("|", ""))
        whole = max(recipe.depth - recipe.depth % period, 1)
        return super().built(replace(recipe, pattern=recipe.pattern.replace("|", ""), depth=whole), mode)


@mutant(of="PAT-12a", case="a-period-and-two", says="built AEMEAEMEAEMMAE", bugs=("HYB-08",), leanest="")
class BuildsMambaForR(Reference):
    """R is built as M: the letter is in the pattern, the argv and the report."""

    def parts(self) -> Parts:
        parts = super().parts()
        return replace(parts, recurrent=parts.mamba2)  # type: ignore[arg-type]  # that is the fault


class ShiftsByOne(Model):
    def layer(self, number: int, parts: PartsInterface) -> Layer:
        return super().layer((number + 1) % self.recipe.depth, parts)


@mutant(of="PAT-12a", case="less-than-a-period", says="built EMEAEMA", leanest="built EAEAEAA")
class CountsLayersFromOne(Exchanged):
    """Layer n is built from letter n + 1: a 1-based number indexes a 0-based list."""

    exchange = {"model": ShiftsByOne}


@mutant(of="PAT-12a", case="depths-are-no-layers", says="built AMAAA", bugs=("HYB-05",))
class CountsDepthsAsLayers(Reference):
    """The prediction heads are counted as layers."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        built = super().built(recipe, mode)
        depths = recipe.mtp.depth if recipe.mtp else 0
        heads = tuple(replace(built.layers[-1], number=len(built.layers) + k) for k in range(depths))
        return replace(built, layers=built.layers + heads)


@mutant(of="PAT-12b", case="nam56r_h200_bf16_v1", says="parameters of A, 3817")
class ReportsABias(Reference):
    """The report counts a bias that the model does not have: 3584 of 4 billion parameters."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        counted = super().count_parameters(recipe)
        more = recipe.ffn_hidden if recipe.mtp else recipe.hidden
        families = dict(counted.families) | {"A": counted.families["A"] + more}
        return replace(counted, total=counted.total + more, active=counted.active + more, families=families)


@mutant(of="PAT-12b", case="tiny-nam56r", says="parameters are active")
class ReportsEveryExpertAsActive(Reference):
    """All parameters are reported as active."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        counted = super().count_parameters(recipe)
        return replace(counted, active=counted.total)


class TiesInSecret(Model):
    def __init__(self, recipe: Recipe, mode: Mode, parts: Parts) -> None:
        super().__init__(recipe, mode, parts)
        if self.head is not None and recipe.mtp is not None:
            self.head.weight = self.embedding.weight


@mutant(of="PAT-12b", case="nam56r_h200_mla_mtp1_bf16_v1", says="parameters of head")
class TiesThoughUntied(Exchanged):
    """Embedding and output projection are one tensor where the recipe wants two."""

    exchange = {"model": TiesInSecret}


class Untied(Model):
    def __init__(self, recipe: Recipe, mode: Mode, parts: Parts) -> None:
        super().__init__(recipe, mode, parts)
        if self.head is None:
            self.head = nn.Linear(recipe.hidden, recipe.vocab, bias=False)


@mutant(of="PAT-12c", case="tied", says="parameters of head, 0 are reported", bugs=("TIE-07",))
class UntiesThoughTied(Exchanged):
    """The output projection has a tensor of its own where the recipe ties it."""

    exchange = {"model": Untied}


@mutant(of="PAT-12d", case="E", says="parameters of E")
class HalvesTheSharedExpert(Reference):
    """The shared expert is half its size, in the model and in the report."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        moe = recipe.moe
        small = recipe if moe is None else replace(recipe, moe=replace(moe, shared_hidden=moe.shared_hidden // 2))
        return super().built(small, mode)

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        moe = recipe.moe
        small = recipe if moe is None else replace(recipe, moe=replace(moe, shared_hidden=moe.shared_hidden // 2))
        return super().count_parameters(small)


@mutant(of="PAT-12d", case="A", says="parameters of A")
class BuildsAllHeads(Reference):
    """Every query head has its own key and value head, though the recipe asks for 8 groups."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        return super().built(replace(recipe, kv_groups=recipe.heads), mode)


class NoResidual(Layer):
    def forward(self, x: Tensor, packing: Packing) -> Output:
        out = super().forward(x, packing)
        return out._replace(y_BTD=out.y_BTD - x) if isinstance(self.mixer, M2RNN) else out


@mutant(of="PAT-12e", case="every-family", says="the logit tensor differs", bugs=("SSM-09",), leanest="")
class DropsTheResidualOfOneFamily(Exchanged):
    """One block family has no residual connection: each mixer adds its own, and one forgets it."""

    exchange = {"layer": NoResidual}


class Twice(Layer):
    def forward(self, x: Tensor, packing: Packing) -> Output:
        out = super().forward(x, packing)
        return out._replace(y_BTD=out.y_BTD + x)


@mutant(of="PAT-12e", case="custom-mixers", says="the logit tensor differs")
class AddsTheResidualTwice(Exchanged):
    """The residual is added in the layer and again around it."""

    exchange = {"layer": Twice}


class NormedResidual(Layer):
    def forward(self, x: Tensor, packing: Packing) -> Output:
        normed: Tensor = self.norm(x)
        out: Output = self.mixer(normed, packing, {})
        return out._replace(y_BTD=normed + out.y_BTD)


@mutant(of="PAT-12e", case="every-family", says="the logit tensor differs", bugs=("SSM-09",))
class TakesTheNormForTheResidual(Exchanged):
    """The residual branches off after the norm."""

    exchange = {"layer": NormedResidual}


class OneNorm(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        layer.norm = self.layers["0"].norm
        return super().run(layer, x, pack)


@mutant(of="PAT-12e", case="tied", says="the logit tensor differs")
class SharesOneNorm(Exchanged):
    """Every layer runs the norm of layer 0; the others are loaded and never used."""

    exchange = {"model": OneNorm}


class Reversed(Model):
    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        order = sorted(self.layers, key=str)  # 0, 1, 10, 11, 2
        self.layers = nn.ModuleDict({name: self.layers[name] for name in order})
        return super().trunk(x, pack)


@mutant(of="PAT-12e", case="every-family", says="the logit tensor differs", leanest="")
class RunsLayersInTextOrder(Exchanged):
    """Layers run in the order of their names as text: 0, 1, 10, 11, 2."""

    exchange = {"model": Reversed}


class SkipsLast(Model):
    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        out, losses, seen = super().trunk(x, pack)
        return out, {name: each / len(self.layers) for name, each in losses.items()}, seen


@mutant(of="PAT-12e", case="every-family", says="aux loss is", bugs=("AUX-12",), leanest="")
class AveragesRouterLossesOverAllLayers(Exchanged):
    """Router losses are averaged over all layers of a hybrid, most of which route nothing."""

    exchange = {"model": SkipsLast}


class EmbedsScaled(Model):
    def embed(self, tokens_BT: Tensor) -> Tensor:
        width: float = self.recipe.hidden**0.5
        return super().embed(tokens_BT) * width


@mutant(of="PAT-12e", case="sparse-by-rank", says="the logit tensor differs")
class ScalesTheEmbedding(Exchanged):
    """Embeddings are multiplied by the square root of their width, as in another model family."""

    exchange = {"model": EmbedsScaled}


class _UsualEpsilon(Model):
    def __init__(self, recipe: Recipe, mode: Mode, parts: PartsInterface) -> None:
        super().__init__(recipe, mode, parts)
        self.norm.eps = 1e-5


@mutant(of="PAT-12e", case="wide-eps", says="the logit tensor differs")
class FinalNormHasTheUsualEpsilon(Exchanged):
    """Every norm has the recipe's epsilon but the last, which has the class's default."""

    exchange = {"model": _UsualEpsilon}


class NoFinalNorm(Model):
    def predict(self, hidden_BTD: Tensor) -> Tensor:
        return super().predict(hidden_BTD / self.norm.weight)


@mutant(of="PAT-12e", case="tied", says="the logit tensor differs")
class FinalNormWithoutWeight(Exchanged):
    """The final norm is fused into the output projection without its weight."""

    exchange = {"model": NoFinalNorm}
