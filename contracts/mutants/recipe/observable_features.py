"""Features that are in the recipe and not in the model, and fields that nothing reads."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.array import Arrays
from contracts.spec.recipe import Mamba, Mode, Optim, Recipe
from contracts.spec.training import Built, Execution, Pass, Session, Tokens, Trained
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.model.parts_interface import PartsInterface
from contracts.stacks.reference.stack import Reference


class Unnormed(Attention):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(replace(recipe, qk_norm=False), parts)


@mutant(of="REC-06a", case="stated-bundle", says="layer 0 (A) has no qk_norm", bugs=("PRV-27",))
class ReadsQkNormAndBuildsNone(Exchanged):
    """The flag is parsed, recorded and passed on, but the attention has no norm."""

    exchange = {"attention": Unnormed}


class EveryLayerStreams(Model):
    def layer(self, number: int, parts: PartsInterface) -> Layer:
        layer = super().layer(number, parts)
        if self.recipe.mhc and layer.streams is None:
            layer.streams = parts.streams(self.recipe, parts)
        return layer


@mutant(of="REC-06a", case="streams-on-attention-and-depths", says="layer 1 (E) has mhc, which is off")
class StreamsOnEveryLayer(Exchanged):
    """Every layer has hyper-connections, though budgets and names assume them on attention only."""

    exchange = {"model": EveryLayerStreams}


@mutant(of="REC-06a", case="sparse-by-rank", says="layer 2 (A) has dsa, which is off", bugs=("HYB-09",))
class SparseEverywhere(Reference):
    """The list of sparse ranks is read as an on-switch: every attention layer gets an indexer."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        if recipe.dsa is not None:
            letters = (recipe.pattern * recipe.depth)[: recipe.depth]
            recipe = replace(recipe, dsa=replace(recipe.dsa, a_ranks=tuple(range(letters.count("A")))))
        return super().built(recipe, mode)


@mutant(of="REC-06a", case="bundle-turned-off", says="layer 1 (E) has no swiglu")
class OneActivation(Reference):
    """The activation is relu² whatever the recipe says."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        return super().built(replace(recipe, activation="relu2"), mode)


@mutant(of="REC-06b", case="A", says="layer 48 has")
class LastPeriodWithoutTheBundle(Reference):
    """The tail after the last whole period is built with defaults."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        built = super().built(recipe, mode)
        tail = recipe.depth - recipe.depth % len(recipe.pattern)
        layers = tuple(
            replace(layer, features=layer.features - {"qk_norm"}) if layer.number >= tail else layer
            for layer in built.layers
        )
        return replace(built, layers=layers)


class Ignores(Reference):
    """A stack that runs every model under fixed values of some fields."""

    fixed: ClassVar[dict[str, object]] = {}

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        return super().run_model(self.narrowed(recipe), execution, weights, batch, backward)

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        return super().initial(self.narrowed(recipe), mode)

    def narrowed(self, recipe: Recipe) -> Recipe:
        return replace(recipe, **self.fixed)  # type: ignore[arg-type]  # a table of fields


@mutant(of="REC-07a", case="rope_theta", says="rope_theta 50 gives the same", bugs=("ROP-21",))
class IgnoresTheta(Ignores):
    """rope theta is set on the configuration after the rotary tables were computed."""

    fixed: ClassVar[dict[str, object]] = {"rope_theta": 10_000}


@mutant(of="REC-07a", case="norm_eps", says="norm_eps 0.1 gives the same")
class IgnoresNormEps(Ignores):
    """Norms use a hard-coded epsilon."""

    fixed: ClassVar[dict[str, object]] = {"norm_eps": 1e-5}


@mutant(of="REC-07a", case="mamba.groups", says="mamba.groups 4 gives the same")
class IgnoresSsmGroups(Ignores):
    """The number of groups of B and C in M is hard-coded."""

    def narrowed(self, recipe: Recipe) -> Recipe:
        return replace(recipe, mamba=replace(recipe.mamba, groups=Mamba(groups=2).groups))


class OneWeight(Model):
    def share(self, loss: str) -> float:
        return 0.1 if loss == "mtp" else super().share(loss)


@mutant(of="REC-07a", case="mtp.loss_weight", says="mtp.loss_weight 0.5 gives the same")
class IgnoresTheWeightOfDepths(Exchanged):
    """The loss weight of multi-token prediction is a constant."""

    exchange = {"model": OneWeight}


class StaysWide(Model):
    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD: Tensor = self.embedding(tokens_BT)
        return x_BTD


@mutant(of="REC-07a", case="dtype", says="dtype 'bf16' gives the same")
class IgnoresTheDtype(Exchanged):
    """Every lane runs in float32, with bf16 in the name, the receipt and the table of results."""

    exchange = {"model": StaysWide}


class FixedSteps(Reference):
    """A trainer that reads some fields of the optimizer from nowhere."""

    fixed: ClassVar[dict[str, object]] = {}

    def train(self, session: Session) -> Trained:
        optim: Optim = replace(session.recipe.optim, **self.fixed)  # type: ignore[arg-type]  # a table of fields
        return super().train(replace(session, recipe=replace(session.recipe, optim=optim)))


@mutant(of="REC-07b", case="optim.beta2", says="optim.beta2 0.9 gives the same weights")
class IgnoresBeta2(FixedSteps):
    """AdamW is created with the framework's default betas."""

    fixed: ClassVar[dict[str, object]] = {"beta1": 0.9, "beta2": 0.999}


@mutant(of="REC-07b", case="optim.schedule", says="optim.schedule 'linear' gives the same weights")
class KnowsOneSchedule(FixedSteps):
    """Every schedule is a cosine."""

    fixed: ClassVar[dict[str, object]] = {"schedule": "cosine"}


@mutant(of="REC-07b", case="seed", says="seed 7 gives the same weights")
class TrainsUnderOneSeed(Reference):
    """The seed is recorded, but training uses a constant."""

    def train(self, session: Session) -> Trained:
        return super().train(replace(session, recipe=replace(session.recipe, seed=1234)))
