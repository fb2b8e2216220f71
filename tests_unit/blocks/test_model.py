"""The whole model, over drawn shapes and at its true size."""

import math
import os
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.instruments import fixtures, numerics
from contracts.law._support import model_passes
from contracts.law._support.recipes import SMALL, SMALL_DSA
from contracts.law.recipe import observable_features
from contracts.spec import INERT, Dsa, Execution, Mhc, Mtp, Recipe, Refused, presets
from contracts.stacks.reference.model.blocks.common import packing
from contracts.stacks.reference.model.init import Initializer
from contracts.stacks.reference.model.mtp import IGNORED, shift_left
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.stack import Reference

STACK = Reference()
QUICK = settings(max_examples=6)


@QUICK
@given(
    letters=st.text("AE", min_size=1, max_size=3),
    streams=st.sampled_from((0, 2, 3)),
    depths=st.integers(0, 2),
    tied=st.booleans(),
    gated=st.booleans(),
)
def test_a_model_of_random_shape_equals_its_definition(
    letters: str, streams: int, depths: int, tied: bool, gated: bool
) -> None:
    recipe = replace(
        SMALL, pattern=letters, depth=len(letters), moe=None, untied_embeddings=not tied, hidden=8, heads=2,
        kv_groups=1, ffn_hidden=12, activation="swiglu" if gated else "relu2",
        mhc=Mhc(streams=streams) if streams else None, mtp=Mtp(depth=depths, loss_weight=0.4) if depths else None,
    )  # fmt: skip
    weights = model_passes.drawn_weights(STACK, recipe)
    for name in [name for name in weights if name.endswith(".alpha")]:
        weights[name] = numerics.array(model_passes.tensor(weights[name]) / 8)
    assert model_passes.oracle_difference(STACK, recipe, letters, weights) == ""


@QUICK
@given(streams=st.integers(1, 6), scale=st.floats(0.1, 5.0), seed=st.integers(0, 99))
def test_the_mixing_matrix_is_doubly_stochastic_and_its_columns_sum_to_exactly_1(
    streams: int, scale: float, seed: int
) -> None:
    recipe = replace(SMALL, mhc=Mhc(streams=streams))
    logits = fixtures.normal("logits", (2, 3, streams, streams), scale=scale, seed=seed)
    matrix = PARTS.streams(recipe, PARTS).mixing(logits)
    assert torch.allclose(matrix.sum(-2), torch.ones(()).double(), atol=1e-14)
    assert bool(((matrix.sum(-1) - 1).abs() < (1e-6 if scale < 1 else 0.3)).all())  # 20 rounds, at any scale
    assert bool((torch.linalg.matrix_norm(matrix, 2) <= 1 + 0.3).all())
    assert bool((matrix > 0).all())


def test_a_shifted_label_never_comes_from_another_row_or_document() -> None:
    values, documents = torch.tensor([[10, 11, 12, 13, 14]]), torch.tensor([[0, 0, 0, 1, 1]])
    packed = packing(values, documents)
    assert shift_left(values, packed, 1, IGNORED).tolist() == [[11, 12, -100, 14, -100]]
    assert shift_left(values, packed, 2, IGNORED).tolist() == [[12, -100, -100, -100, -100]]
    assert shift_left(values, packed, 5, IGNORED).tolist() == [[-100] * 5]
    assert shift_left(values, packed, 9, IGNORED).tolist() == [[-100] * 5]


def test_given_weights_without_one_of_the_models_are_refused_with_its_name() -> None:
    weights = model_passes.drawn_weights(STACK, model_passes.AHEAD)
    del weights["mtp.1.norm.weight"]
    with pytest.raises(Refused, match=r"lack mtp\.1\.norm\.weight"):
        STACK.run_model(model_passes.AHEAD, Execution(), weights, model_passes.batch(model_passes.AHEAD), False)
    more = model_passes.drawn_weights(STACK, model_passes.AHEAD) | {"extra": weights["norm.weight"]}
    with pytest.raises(Refused, match="have extra"):
        STACK.run_model(model_passes.AHEAD, Execution(), more, model_passes.batch(model_passes.AHEAD), False)


def test_the_largest_preset_is_built_at_true_size_in_seconds_without_its_memory() -> None:
    start = time.perf_counter()
    built = STACK.built(presets.resolve("nam56r_h200_bf16_v1"), "author_dp")
    assert time.perf_counter() - start < 30
    assert sum(math.prod(row.shape) for row in built.parameters) > 4_000_000_000


def test_initial_scales_equal_gpt_2s() -> None:
    drawn = Initializer(SMALL)
    assert float(drawn.tensor("layers.0.mixer.wq.weight", (200, 200)).std()) == pytest.approx(0.02, rel=0.02)
    for name in ("mixer.wo.weight", "mixer.shared.w2.weight", "mixer.experts.w2"):
        std = float(drawn.tensor(f"layers.0.{name}", (200, 200)).std())
        assert std == pytest.approx(0.02 / math.sqrt(28), rel=0.02), name
    assert drawn.tensor("layers.1.mixer.router.bias", (12,)).tolist() == [0.0] * 12
    assert drawn.tensor("layers.11.mixer.W", (2, 3, 3)).tolist() == [torch.eye(3).tolist()] * 2


@pytest.mark.slow
def test_initial_weights_do_not_depend_on_pythonhashseed() -> None:
    program = (
        "from contracts.spec import presets; from contracts.stacks.reference.stack import Reference;"
        "held = Reference().initial(presets.resolve('tiny-nam56r'), 'nemo_native');"
        "print(*(each.fingerprint for each in held.values()))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": "1"},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    ours = STACK.initial(presets.resolve("tiny-nam56r"), "nemo_native")
    assert other.split() == [each.fingerprint for each in ours.values()]


ELSEWHERE = {
    "fp8": "felt in what computes in it (PREC-01)",
    "recompute": "recomputation changes nothing (BLK-07c)",
    "batch.micro": "how a batch is cut changes nothing (PAR-05)",
    "data.path": "text of one's own; reaches the run through the trainer's command line",
    "data.tokenizer": "tokens of the reference are bytes",
    "checkpoint": "where state is saved (CKPT)",
    "degrees": "layout changes no number (PAR-01)",
    "author_spec": "a module of Megatron-Core's; reaches its launch (REC-07)",
    "optim": "by its fields", "batch": "by its fields", "data": "by its fields", "mamba": "by its fields",
}  # fmt: skip


def test_every_field_of_a_recipe_changes_a_number_or_is_declared_not_to() -> None:
    known = {*observable_features.FIELDS, *observable_features.STEPS, *INERT, *ELSEWHERE}
    everything = replace(model_passes.EVERYTHING, mla=SMALL_DSA.mla, dsa=Dsa(a_ranks=(0,)))
    whole = {"fp8", "checkpoint", "degrees"}  # judged elsewhere, field by field
    assert [name for name in _names(everything) if name not in known and name.split(".")[0] not in whole] == []


def _names(recipe: Recipe) -> list[str]:
    found = []
    for field in fields(recipe):
        found.append(field.name)
        value = getattr(recipe, field.name)
        if is_dataclass(value):
            found += [f"{field.name}.{inner.name}" for inner in fields(value)]
    return found
