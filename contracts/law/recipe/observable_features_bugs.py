"""Features that are in the recipe and not in the model, and fields that nothing reads."""

from dataclasses import replace
from typing import ClassVar

from contracts.law._bugs.numeric import Attention, Model, Reference, broken, with_attributes
from contracts.spec import Arrays, Execution, Mamba, Mode, Optim, Pass, Recipe, Session, Tokens, Trained


@broken(Attention, "__init__", "REC-06a[stated-bundle]: layer 0 (A) has no qk_norm", bugs=("PRV-27",))
def reads_qk_norm_and_builds_none(init, self, recipe, parts):
    """The flag is parsed, recorded and passed on, but the attention has no norm."""
    init(self, replace(recipe, qk_norm=False), parts)


@broken(Model, "layer", "REC-06a[streams-on-attention-and-depths]: layer 1 (E) has mhc, which is off")
def streams_on_every_layer(former, self, number, parts):
    """Every layer has hyper-connections, though budgets and names assume them on attention only."""
    layer = former(self, number, parts)
    if self.recipe.mhc and layer.streams is None:
        layer.streams = parts.streams(self.recipe, parts)
    return layer


@broken(Reference, "built", "REC-06a[sparse-by-rank]: layer 2 (A) has dsa, which is off", bugs=("HYB-09",))
def sparse_everywhere(built, self, recipe, mode):
    """The list of sparse ranks is read as an on-switch: every attention layer gets an indexer."""
    if recipe.dsa is not None:
        letters = (recipe.pattern * recipe.depth)[: recipe.depth]
        recipe = replace(recipe, dsa=replace(recipe.dsa, a_ranks=tuple(range(letters.count("A")))))
    return built(self, recipe, mode)


@broken(Reference, "built", "REC-06a[bundle-turned-off]: layer 1 (E) has no swiglu")
def one_activation(built, self, recipe, mode):
    """The activation is relu² whatever the recipe says."""
    return built(self, replace(recipe, activation="relu2"), mode)


@broken(Reference, "built", "REC-06b[A]: layer 48 has")
def last_period_without_the_bundle(former, self, recipe, mode):
    """The tail after the last whole period is built with defaults."""
    built = former(self, recipe, mode)
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


with_attributes(
    "IgnoresTheta",
    "rope theta is set on the configuration after the rotary tables were computed.",
    "REC-07a[rope_theta]: rope_theta 50 gives the same",
    owner=Ignores,
    bugs=("ROP-21",),
    fixed={"rope_theta": 10_000},
)

with_attributes(
    "IgnoresNormEps",
    "Norms use a hard-coded epsilon.",
    "REC-07a[norm_eps]: norm_eps 0.1 gives the same",
    owner=Ignores,
    fixed={"norm_eps": 1e-5},
)


@broken(Ignores, "narrowed", "REC-07a[mamba.groups]: mamba.groups 4 gives the same")
def ignores_ssm_groups(narrowed, self, recipe):
    """The number of groups of B and C in M is hard-coded."""
    return replace(recipe, mamba=replace(recipe.mamba, groups=Mamba(groups=2).groups))


@broken(Model, "share", "REC-07a[mtp.loss_weight]: mtp.loss_weight 0.5 gives the same")
def ignores_the_weight_of_depths(share, self, loss):
    """The loss weight of multi-token prediction is a constant."""
    return 0.1 if loss == "mtp" else share(self, loss)


@broken(Model, "embed", "REC-07a[dtype]: dtype 'bf16' gives the same")
def ignores_the_dtype(embed, self, tokens_BT):
    """Every lane runs in float32, with bf16 in the name, the receipt and the table of results."""
    return self.embedding(tokens_BT)


class FixedSteps(Reference):
    """A trainer that reads some fields of the optimizer from nowhere."""

    fixed: ClassVar[dict[str, object]] = {}

    def train(self, session: Session) -> Trained:
        optim: Optim = replace(session.recipe.optim, **self.fixed)  # type: ignore[arg-type]  # a table of fields
        return super().train(replace(session, recipe=replace(session.recipe, optim=optim)))


with_attributes(
    "IgnoresBeta2",
    "AdamW is created with the framework's default betas.",
    "REC-07b[optim.beta2]: optim.beta2 0.9 gives the same weights",
    owner=FixedSteps,
    fixed={"beta1": 0.9, "beta2": 0.999},
)

with_attributes(
    "KnowsOneSchedule",
    "Every schedule is a cosine.",
    "REC-07b[optim.schedule]: optim.schedule 'linear' gives the same weights",
    owner=FixedSteps,
    fixed={"schedule": "cosine"},
)


@broken(Reference, "train", "REC-07b[seed]: seed 7 gives the same weights")
def trains_under_one_seed(train, self, session):
    """The seed is recorded, but training uses a constant."""
    return train(self, replace(session, recipe=replace(session.recipe, seed=1234)))
