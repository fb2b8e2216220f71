"""The recipe as a value: frozen, whole after JSON and after overrides, refused with every broken relation at once."""

import dataclasses

import pytest

from contracts.law.recipe import features
from contracts.spec import INERT, Batch, Degrees, Dsa, Fp8, Mamba, Mla, Moe, Recipe, Refused, codec, presets
from contracts.spec.divisibility import refusals_on

NAM56R = presets.NAM56R


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_survives_json(name: str) -> None:
    assert codec.loads(Recipe, codec.dumps(presets.PRESETS[name])) == presets.PRESETS[name]


def test_a_recipe_and_its_parts_are_frozen() -> None:
    for value, field in ((NAM56R, "depth"), (NAM56R.moe, "experts"), (NAM56R.optim, "lr"), (NAM56R.degrees, "tp")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, 1)


BROKEN = {
    "heads": ({"heads": 48}, "heads = 48: must divide hidden (3584); choose a divisor"),
    "kv-groups": ({"kv_groups": 9}, "kv_groups = 9: must divide heads (56); choose a divisor"),
    "ssm-groups": ({"mamba": Mamba(groups=9)}, "mamba.groups = 9: must divide mamba.heads (56); choose a divisor"),
    "micro-batch": ({"batch": Batch(micro=3)}, "batch.micro = 3: must divide batch.total (64); choose a divisor"),
    "top-k": ({"moe": Moe(top_k=17)}, "moe.top_k = 17: must not exceed moe.experts (16); choose fewer"),
    "bias-of-softmax": ({"moe": Moe(selection_bias=True)}, "moe.selection_bias = True: needs sigmoid scores"),
    "sparse-without-latent": ({"dsa": Dsa(a_ranks=(1,))}, "dsa = 'on': needs MLA, and mla is off; turn mla on"),
    "rank-13": ({"mla": Mla(), "dsa": Dsa(a_ranks=(13,))}, "dsa.a_ranks = 13: is not an A-rank (the pattern has 13"),
    "rank-twice": ({"mla": Mla(), "dsa": Dsa(a_ranks=(3, 3))}, "dsa.a_ranks = (3, 3): repeats a rank; drop it"),
    "fp8-of-fp16": ({"fp8": Fp8(), "dtype": "fp16"}, "fp8 = 'on': needs dtype bf16 (dtype is fp16); use bf16"),
    "no-mode": ({"modes": ()}, "modes = (): is empty; name nemo_native or author_dp"),
    "no-hidden": ({"hidden": 0}, "hidden = 0: must be positive; give a size"),
    "no-experts": ({"moe": Moe(experts=0)}, "moe.experts = 0: must be positive; turn the feature off instead"),
    "letter": ({"pattern": "AEX"}, "pattern = 'AEX': unknown letter 'X' at column 3"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_relation_is_refused_with_field_value_and_remedy(case: str) -> None:
    values, words = BROKEN[case]
    with pytest.raises(Refused) as caught:
        dataclasses.replace(NAM56R, **values)  # type: ignore[arg-type]  # a table of fields
    assert words in str(caught.value)


def test_every_broken_relation_is_refused_at_once() -> None:
    with pytest.raises(Refused) as caught:
        dataclasses.replace(NAM56R, kv_groups=9, batch=Batch(micro=3), dsa=Dsa(a_ranks=(50,)), pattern="AxME")
    assert caught.value.fields == ("pattern", "kv_groups", "batch.micro", "dsa", "dsa.a_ranks")


OVER = {  # degrees, dp → refused fields
    "fits": (Degrees(pp=4, tp=8, ep=16, sp=True), 16, ()),
    "heads-and-groups": (Degrees(tp=16), 1, ("tp", "tp", "tp", "tp")),
    "experts": (Degrees(ep=5), 1, ("ep",)),
    "sequence": (Degrees(cp=3), 1, ("seq_length",)),
    "stages": (Degrees(pp=5), 1, ("pp",)),
    "batch": (Degrees(), 3, ("batch.total",)),
    "several": (Degrees(pp=3, cp=5, ep=3), 7, ("ep", "seq_length", "pp", "batch.total")),
}


@pytest.mark.parametrize("case", OVER)
def test_a_size_that_does_not_divide_is_refused_by_its_field(case: str) -> None:
    degrees, dp, fields = OVER[case]
    assert tuple(each.field for each in refusals_on(NAM56R, degrees, dp)) == fields


def test_replicated_groups_need_a_tp_size_that_is_a_multiple_of_them() -> None:
    few = dataclasses.replace(NAM56R, kv_groups=2, replicate_kv=True)
    assert not refusals_on(few, Degrees(tp=4), 1)
    assert refusals_on(dataclasses.replace(few, kv_groups=4, replicate_kv=False), Degrees(tp=8), 1)
    assert refusals_on(dataclasses.replace(few, heads=56, kv_groups=4), Degrees(tp=14), 1)


LATENT = dataclasses.replace(NAM56R, fp8=Fp8(), mla=Mla(q_lora=24, kv_lora=40, qk_head=12, qk_rope=8, v_head=20))
NARROW_WIDTHS = {  # the widths that FP8 does not take: "what (elements on one rank)"
    "latent": (LATENT, Degrees(), ["q_lora (24)", "kv_lora (40)"]),
    "latent-over-8": (
        LATENT, Degrees(tp=8),
        ["q_lora (24)", "heads * (qk_head + qk_rope) / 8 (140)", "kv_lora (40)", "heads * v_head / 8 (140)"],
    ),
    "groups-over-8": (
        dataclasses.replace(NAM56R, fp8=Fp8(), ffn_hidden=3592, heads=56, kv_groups=8, mamba=Mamba(head_dim=10)),
        Degrees(tp=8), ["heads * head_dim / 8 (70)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NARROW_WIDTHS)
def test_fp8_refuses_every_width_that_is_no_multiple_of_16_on_a_rank(case: str) -> None:
    recipe, degrees, told = NARROW_WIDTHS[case]
    said = [str(each) for each in refusals_on(recipe, degrees, 1) if "for fp8" in str(each)]
    assert [each.partition(": ")[2].partition(" must be")[0] for each in said] == told


def test_every_field_has_an_alternative_or_is_declared_inert() -> None:
    fields = set()
    for field in dataclasses.fields(features.EVERYTHING):
        value = getattr(features.EVERYTHING, field.name)
        fields.add(field.name)
        if dataclasses.is_dataclass(value):
            fields |= {f"{field.name}.{inner.name}" for inner in dataclasses.fields(value)}
    assert fields == {*features.ALTERNATIVES, *INERT, *features.BY_THE_MODE}
