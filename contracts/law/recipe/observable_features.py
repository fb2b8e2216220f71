"""Features and fields as observed: in the model's modules, in the results of a pass, in the effect of a step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from contracts.contract import contract
from contracts.law._support import training_run
from contracts.law._support.model_passes import MOE, WHOLE, batch, drawn_weights, one_pass, tensor
from contracts.law._support.recipes import PARALLEL, SMALL_DSA, SMALL_MLA
from contracts.spec import Array, Dsa, Mhc, Mode, Moe, Mtp, Recipe, Session, Stack, Step, Training, rung_of


class Whole(Stack, Training, Protocol):
    """Who answers about presets and models."""


_A, _E = {"gqa", "qk_norm", "rope"}, {"moe", "shared_expert", "relu2"}
_M, _R = {"mamba2"}, {"m2rnn"}
_SIGMOID = Moe(experts=12, top_k=3, expert_hidden=20, shared_hidden=0, score="sigmoid", selection_bias=True)
_SPARSE = replace(SMALL_DSA, pattern="AE", depth=5, dsa=Dsa(a_ranks=(0, 2), index_heads=8, index_head_dim=8, top_k=3))

Layers = tuple[set[str], ...]
BUNDLES: dict[str, tuple[Recipe, Mode, Layers, set[str]]] = {  # recipe, mode, features of each layer, of the whole
    "stated-bundle": (replace(WHOLE, depth=4), "nemo_native", (_A, _E, _M, _R), {"untied_embeddings"}),
    "custom-mixers": (replace(WHOLE, depth=4), "author_dp", (_A, _E, {"mamba3"}, _R), {"untied_embeddings"}),
    "bundle-turned-off": (
        replace(WHOLE, depth=2, qk_norm=False, kv_groups=4, activation="swiglu", untied_embeddings=False, moe=None),
        "nemo_native", ({"rope"}, {"swiglu"}), {"tied_embeddings"},
    ),
    "streams-on-attention-and-depths": (
        replace(WHOLE, depth=3, mhc=Mhc(streams=2), mtp=Mtp(depth=2)),
        "nemo_native", (_A | {"mhc"}, _E, _M), {"untied_embeddings", "mtp"},
    ),
    "attention-beside-a-scan": (
        replace(PARALLEL, pattern="AEM", depth=3), "nemo_native", (_A | _M | {"parallel_ssm"}, _E, _M),
        {"untied_embeddings"},
    ),
    "biased-choice-no-shared-expert": (
        replace(WHOLE, depth=2, moe=_SIGMOID), "nemo_native", (_A, {"moe", "relu2", "selection_bias"}),
        {"untied_embeddings"},
    ),
    "sparse-by-rank": (
        _SPARSE, "author_dp", ({"mla", "rope", "dsa"}, _E, {"mla", "rope"}, _E, {"mla", "rope", "dsa"}),
        {"untied_embeddings"},
    ),
}  # fmt: skip


@contract("REC-06a", asks="built", cases=BUNDLES, source="naming; F15; PRV-27")
def every_feature_leaves_a_witness(
    stack: Training, recipe: Recipe, mode: Mode, layers: Layers, outside: set[str]
) -> None:
    """Each layer of the built model has the features that the recipe turns on, and none that it turns off.

    Rotary positions, QK norm, untied embeddings, relu² and grouped queries are the bundle that NAM56R was measured
    with. A flag that is read but never used leaves the feature's name on a model without it.
    """
    built = stack.built(recipe, mode)
    for layer, expected in zip(built.layers, layers, strict=True):
        found = set(layer.features)
        lacks, extra = sorted(expected - found), sorted(found - expected)
        assert not lacks, f"layer {layer.number} ({layer.family}) has no {', '.join(lacks)}"
        assert not extra, f"layer {layer.number} ({layer.family}) has {', '.join(extra)}, which is off"
    assert set(built.features) == outside, f"the model has {sorted(built.features)}, expected {sorted(outside)}"


FLAGSHIP = "nam56r_h200_bf16_v1"
WITNESSED = {  # letter, features, at NAM56R's true size
    "A": (FLAGSHIP, "A", _A), "E": (FLAGSHIP, "E", _E), "M": (FLAGSHIP, "M", _M), "R": (FLAGSHIP, "R", _R),
}  # fmt: skip


@contract("REC-06b", asks=("built", "preset"), cases=WITNESSED, source="naming: the declared runtime bundle")
def nam56r_is_built_with_its_bundle(stack: Whole, name: str, family: str, features: set[str]) -> None:
    """Every layer of NAM56R at its true size, including the last, has the features that the recipe declares for it."""
    for layer in stack.built(stack.preset(name, ()), "nemo_native").layers:
        if layer.family == family:
            assert set(layer.features) == features, f"layer {layer.number} has {sorted(layer.features)}"


_HYBRID = replace(WHOLE, depth=4)
_LATENT = replace(SMALL_MLA, pattern="AE", depth=2)
_IN_HALF = replace(_HYBRID, moe=replace(MOE, expert_hidden=16))  # what grouped products in 16 bits take
_TWICE = replace(_HYBRID, moe=replace(MOE, shared_hidden=2 * MOE.expert_hidden))  # some build it of routed ones
_CAPPED = replace(_HYBRID, moe=replace(MOE, capacity_factor=0.5))
_CHOSEN = replace(_HYBRID, moe=replace(_SIGMOID, selection_bias=False))
_FOUR = replace(_HYBRID, moe=replace(_SIGMOID, top_k=4))
_AHEAD = replace(_HYBRID, mtp=Mtp(depth=1, loss_weight=0.1))
_STREAMS = replace(_HYBRID, pattern="AAE", mhc=Mhc(streams=2))

_A_ROUTER = ("experts", "sigmoid")
FIELDS: Mapping[str, tuple[Recipe, Any, tuple[str, ...]]] = {  # a recipe in which it matters, another value, its needs
    "pattern": (_HYBRID, "AERM", ("recurrent",)), "depth": (_HYBRID, 8, ()), "hidden": (_HYBRID, 32, ()),
    "heads": (_HYBRID, 6, ("attention",)), "kv_groups": (_HYBRID, 4, ("attention",)), "vocab": (_HYBRID, 67, ()),
    "rope_theta": (_HYBRID, 50, ("attention",)), "qk_norm": (_HYBRID, False, ("attention", "qk-norm")),
    "untied_embeddings": (_HYBRID, False, ("tied",)), "activation": (_HYBRID, "swiglu", ("relu2", "swiglu")),
    "norm_eps": (_HYBRID, 0.1, ()), "dropout": (_HYBRID, 0.3, ("dropout",)),
    "biases": (_HYBRID, ("attention",), ("attention", "attention-bias")),
    "ffn_hidden": (replace(_HYBRID, moe=None), 44, ("mlp",)),
    "dtype": (_IN_HALF, "bf16", ("bf16",)), "moe": (_HYBRID, None, ("experts", "mlp")),
    "moe.experts": (_HYBRID, 16, ("experts",)), "moe.top_k": (_HYBRID, 2, ("experts",)),
    "moe.expert_hidden": (_HYBRID, 24, ("experts",)), "moe.shared_hidden": (_TWICE, 0, ("experts", "shared-expert")),
    "moe.score": (_HYBRID, "sigmoid", _A_ROUTER),
    "moe.selection_bias": (_CHOSEN, True, ("recurrent", *_A_ROUTER, "selection-bias")),
    "moe.aux_loss": (_HYBRID, 0.5, ("experts", "balance-loss")), "moe.z_loss": (_HYBRID, 0.1, ("experts", "z-loss")),
    "moe.groups": (_FOUR, (4, 2), (*_A_ROUTER, "group-limited")),
    "moe.route_scale": (_CHOSEN, 2.5, (*_A_ROUTER, "route-scale")),
    "moe.capacity_factor": (_HYBRID, 0.5, ("experts", "capacity")),
    "moe.drop_policy": (_CAPPED, "probs", ("experts", "capacity", "capacity-by-gate")),
    "mla": (_HYBRID, SMALL_MLA.mla, ("attention", "mla")), "mla.q_lora": (_LATENT, 10, ("mla",)),
    "mla.kv_lora": (_LATENT, 12, ("mla",)), "mla.qk_head": (_LATENT, 8, ("mla",)),
    "mla.qk_rope": (_LATENT, 6, ("mla",)), "mla.v_head": (_LATENT, 6, ("mla",)),
    "dsa": (_SPARSE, None, ("dsa",)), "dsa.a_ranks": (_SPARSE, (1, 2), ("dsa",)),
    "dsa.index_heads": (_SPARSE, 6, ("dsa",)), "dsa.index_head_dim": (_SPARSE, 10, ("dsa",)),
    "dsa.top_k": (_SPARSE, 2, ("dsa",)), "mtp": (_HYBRID, Mtp(depth=1), ("prediction-heads",)),
    "mtp.depth": (_AHEAD, 2, ("prediction-heads",)), "mtp.loss_weight": (_AHEAD, 0.5, ("prediction-heads",)),
    "mhc": (_STREAMS, None, ("hyper-connections",)), "mhc.streams": (_STREAMS, 3, ("hyper-connections",)),
    "parallel_ssm": (PARALLEL, None, ("parallel-ssm",)),
    "parallel_ssm.attention_scale": (PARALLEL, 1.0, ("parallel-ssm",)),
    "parallel_ssm.ssm_scale": (PARALLEL, 1.0, ("parallel-ssm",)),
    "mamba.heads": (_HYBRID, 6, ("mamba",)), "mamba.head_dim": (_HYBRID, 12, ("mamba",)),
    "mamba.state": (_HYBRID, 12, ("mamba",)), "mamba.groups": (_HYBRID, 4, ("mamba",)),
}  # fmt: skip
"""A selection bias is felt where weights and buffers are drawn together, as only a stack of every letter has them."""


@contract(
    "REC-07a", asks=("initial", "run_model"), sheds=("packed",), source="F15; ROP-21",
    cases={name: (recipe, name, value) for name, (recipe, value, _) in FIELDS.items()},
    needs={name: needed for name, (_, _, needed) in FIELDS.items()},
)  # fmt: skip
def every_field_of_the_model_is_felt(stack: Training, recipe: Recipe, field: str, value: Any) -> None:
    """Changing a field of the recipe changes the logits or a loss, even if every weight that both models have is equal.

    A field that is stored in a configuration and never read makes an ablation compare a model with itself.
    """
    other = changed(recipe, field, value)
    weights = drawn_weights(stack, recipe)
    theirs = {
        name: weights[name] if name in weights and weights[name].shape == each.shape else each
        for name, each in drawn_weights(stack, other).items()
    }
    one = one_pass(stack, recipe, weights, batch(recipe), precision="declared")
    two = one_pass(stack, other, theirs, batch(replace(other, vocab=recipe.vocab)), precision="declared")
    losses = any(abs(one.losses.get(name, 0.0) - loss) > 1e-4 for name, loss in two.losses.items())
    felt = losses or _differ(one.logits, two.logits) or len(one.mtp_logits) != len(two.mtp_logits)
    assert felt, f"{field} {value!r} gives the same logits and losses as {_value(recipe, field)!r}"


_STEPPED = replace(WHOLE, pattern="AE", depth=2, moe=replace(_SIGMOID, expert_hidden=8))
_OWN = ("own-data",)
STEPS: Mapping[str, tuple[Any, tuple[str, ...]]] = {  # another value, its needs
    "optim.rule": ("muon", ("muon",)), "optim.lr": (5e-3, ()), "optim.min_lr": (5e-3, ()),
    "optim.schedule": ("linear", ("linear",)), "optim.warmup": (1, ()), "optim.steps": (16, ()),
    "optim.weight_decay": (0.5, ()), "optim.beta1": (0.8, ()), "optim.beta2": (0.9, ()), "optim.clip": (1e-3, ()),
    "optim.end_weight_decay": (0.9, ("changing-decay",)),
    "batch.total": (6, _OWN), "seq_length": (24, _OWN), "seed": (7, _OWN),
    "moe.bias_rate": (0.1, ("experts", "sigmoid", "selection-bias")),
}  # fmt: skip


@contract(
    "REC-07b", asks="train", source="F15", sheds=("own-data",),
    cases={name: (_STEPPED, name, value) for name, (value, _) in STEPS.items()},
    needs={name: needed for name, (_, needed) in STEPS.items()},
)  # fmt: skip
def every_field_of_a_step_is_felt(stack: Training, recipe: Recipe, field: str, value: Any) -> None:
    """Changing a field of the recipe changes the weights or the routers' selection bias after five steps.

    Five, because a schedule that counts from step 0 comes to the end of a warm-up of two in the third.
    """
    given = () if "own-data" in STEPS[field][1] or not rung_of(recipe) else training_run.batches(5, recipe=recipe)
    one, two = (
        stack.train(
            Session(recipe=each, steps=5, batches=given, observe=frozenset({"weights", "buffers"}), at=frozenset({5}))
        ).steps[-1]
        for each in (recipe, changed(recipe, field, value))
    )
    felt = any(_differ(each, _held(two)[name]) for name, each in _held(one).items())
    assert felt, f"{field} {value!r} gives the same weights after 5 steps as {_value(recipe, field)!r}"


def _held(step: Step) -> dict[str, Array]:
    return {**step.weights, **step.buffers}


def _differ(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return True
    if not one.data:
        return False
    left, right = (tensor(each).double() for each in (one, other))
    largest = max(float(left.abs().max()), float(right.abs().max()))
    return bool(((left - right).abs() > 1e-5 * largest).any())


def changed(recipe: Recipe, field: str, value: Any) -> Recipe:
    """A recipe with one field changed, by its dotted name."""
    part, _, inner = field.partition(".")
    if not inner:
        return replace(recipe, **{part: value})
    return replace(recipe, **{part: replace(getattr(recipe, part), **{inner: value})})


def _value(recipe: Recipe, field: str) -> object:
    found: object = recipe
    for name in field.split("."):
        found = getattr(found, name)
    return found
