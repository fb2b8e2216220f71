"""Symbols of torchtitan that moved: either form is found, and folded rows stay apart."""

import dataclasses
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch", reason="rows are tensors")

from torch import Tensor, nn  # noqa: E402

from contracts.spec import NotOffered  # noqa: E402
from contracts.stacks.torchtitan import layer_symbols, symbols  # noqa: E402

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["max_seq_len", "max_context_length", "none of both"])
def test_the_rope_tables_length_is_passed_under_its_old_or_new_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_symbols, "since_july", lambda: True)
    fields = [("dim", int), *([(name, int)] if " " not in name else []), ("theta", float)]
    kind = SimpleNamespace(Config=dataclasses.make_dataclass("Config", fields))
    _modules(monkeypatch, models_common_rope=SimpleNamespace(ComplexRoPE=kind, CosSinRoPE=None))
    if " " in name:
        with pytest.raises(TypeError, match="max_seq_len"):
            layer_symbols.rope(dim=8, length=32, theta=10.0, pairs=True)
        return
    attention, model = layer_symbols.rope(dim=8, length=32, theta=10.0, pairs=True)
    assert (dataclasses.asdict(attention["rope"]), model) == ({"dim": 8, name: 32, "theta": 10.0}, {})


@pytest.mark.parametrize(("pairs", "backend"), [(True, "complex"), (False, "cos_sin")])
def test_the_rope_of_up_to_june_is_the_models_and_an_attention_gets_its_table(
    pairs: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _modules(monkeypatch, models_common_rope=SimpleNamespace(RoPE=SimpleNamespace(Config=dict)))
    attention, model = layer_symbols.rope(dim=8, length=32, theta=10.0, pairs=pairs)
    assert attention == {"rope_backend": backend}
    assert model == {"rope": {"dim": 8, "max_seq_len": 48, "theta": 10.0, "backend": backend}}

    class Turns(nn.Module):
        def forward(self, x: Tensor, rope_cache: Tensor, attention_masks: Any) -> Tensor:
            assert attention_masks is None
            return x * rope_cache

    monkeypatch.setattr(symbols, "folded", lambda: False)
    assert symbols.of_rows(Turns(), torch.ones(2, 3, 4), attends=True, rope=torch.tensor(3.0)).eq(3.0).all()


@pytest.mark.parametrize("folded", [True, False])
def test_a_token_reads_only_its_own_row_in_folded_and_unfolded_batches(
    folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token becomes the sum of its own row up to it, times its position, whichever shape the layers take."""

    def summed(q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        return v_BLNH.cumsum(1)

    class Branch(nn.Module):
        def forward(self, x: Tensor, attention_masks: Any, positions: Tensor | None = None) -> Tensor:
            assert attention_masks is None
            given = (x.unflatten(-1, (2, -1)),) * 3
            y = (symbols.by_rows(summed, *given) if folded else summed(*given)).flatten(-2)
            return y * (torch.arange(x.shape[1])[:, None] if positions is None else positions[:, None])

    monkeypatch.setattr(symbols, "folded", lambda: folded)
    x_BTD = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(symbols.of_rows(Branch(), x_BTD, attends=True), x_BTD.cumsum(1) * torch.arange(3.0)[:, None])
    assert torch.equal(symbols.of_rows(nn.Identity(), x_BTD, attends=False), x_BTD)


def _configs(monkeypatch: pytest.MonkeyPatch, **kinds: list[str]) -> None:
    """A torchtitan whose configurations have these fields."""
    made = {kind: dataclasses.make_dataclass(kind, names) for kind, names in kinds.items()}
    for name in ("torchtitan", "torchtitan.config", "torchtitan.config.configs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**made))  # type: ignore[arg-type]


def test_the_batch_size_is_passed_in_rows_or_in_tokens_as_the_version_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    _configs(monkeypatch, TrainingConfig=["seq_len"], ParallelismConfig=["pipeline_parallel_microbatch_size"])
    monkeypatch.setattr(symbols, "since_july", lambda: True)
    told = symbols.batch_sizes(rows=2, whole=4, total=8, length=15, tp=2)
    assert told == {"local_batch_size": 4, "global_batch_size": 8, "seq_len": 15}
    monkeypatch.setattr(symbols, "since_july", lambda: False)
    assert symbols.batch_sizes(rows=2, whole=4, total=8, length=15, tp=2)["seq_len"] == 16
    assert symbols.microbatches(rows=2, number=4) == {"pipeline_parallel_microbatch_size": 2}
    _configs(monkeypatch, TrainingConfig=["max_context_length"], ParallelismConfig=["num_pp_microbatches"])
    assert [*symbols.batch_sizes(rows=2, whole=4, total=8, length=16, tp=1).values()] == [32, 128, 16]
    assert symbols.microbatches(rows=2, number=4) == {"num_pp_microbatches": 4}


def test_a_folded_batch_has_the_place_of_each_token_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens_BT, labels_BT = torch.arange(6).view(2, 3), torch.arange(6, 12).view(2, 3)
    monkeypatch.setattr(symbols, "folded", lambda: True)
    given, labels_N = symbols.batch_of(tokens_BT, labels_BT)
    assert {name: each.tolist() for name, each in given.items()} == {"input": [*range(6)], "positions": [0, 1, 2] * 2}
    assert labels_N.tolist() == [*range(6, 12)]
    monkeypatch.setattr(symbols, "folded", lambda: False)
    assert symbols.batch_of(tokens_BT, labels_BT)[0]["input"] is tokens_BT


def _modules(monkeypatch: pytest.MonkeyPatch, **held: SimpleNamespace) -> None:
    """Modules of torchtitan by their last names; none of the others can be imported."""

    def found(name: str) -> SimpleNamespace:
        if name not in held:
            raise ModuleNotFoundError(name)
        return held[name]

    short = lambda name: found(name.removeprefix("torchtitan.").replace(".", "_"))  # noqa: E731
    for module in (symbols, layer_symbols):
        monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=short))


def test_the_checkpoint_manager_and_schedules_are_found_at_their_old_or_new_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older, newer = (SimpleNamespace(CheckpointManager=age, LRSchedulersContainer=age) for age in ("older", "newer"))
    _modules(
        monkeypatch, components_checkpoint=older, components_lr_scheduler=older, components_optimizer=SimpleNamespace()
    )
    assert (symbols.checkpoint_manager(), symbols.schedules()) == ("older", "older")
    _modules(monkeypatch, components_checkpointer=newer, components_checkpoint=older, components_optimizer=newer)
    assert (symbols.checkpoint_manager(), symbols.schedules()) == ("newer", "newer")


@pytest.mark.parametrize(("own", "told"), [("default", "default"), ("partial_dtensor", "partial_dtensor"), ("", None)])
def test_the_dtensor_backend_is_passed_under_its_old_or_new_name(
    own: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [("spmd_backend", Literal[own, "spmd_types"])] if own else []  # type: ignore[valid-type]
    kind = dataclasses.make_dataclass("ParallelismConfig", fields)
    for name in ("torchtitan", "torchtitan.config", "torchtitan.config.configs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(ParallelismConfig=kind))  # type: ignore[arg-type]
    assert symbols.dtensors().get("spmd_backend") == told


def test_experts_and_their_grouped_products_are_found_at_their_old_or_new_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older, newer = (
        type("Experts", (), {name: lambda self: None for name in names})
        for names in (("_experts_forward", "forward"), ("forward", "_grouped_mm"))
    )
    own, hook, of, oldest = torch._grouped_mm, newer._grouped_mm, {"GroupedExperts": older}, object()
    places = (
        ("models_moe_moe", {**of, "_run_experts_grouped_mm": oldest}, oldest),
        ("models_common_moe_moe", {**of, "_run_experts_grouped_mm": oldest}, oldest),
        ("models_common_moe", of, older._experts_forward),
        ("models_common_moe", {"GroupedExperts": newer}, newer.forward),
    )  # fmt: skip
    for place, held, function in places:
        _modules(monkeypatch, **{place: SimpleNamespace(**held)})
        hooked = held["GroupedExperts"] is newer
        assert layer_symbols.of_experts() is function
        with layer_symbols.products_by(len):
            assert (torch._grouped_mm is len, newer._grouped_mm is len) == (not hooked, hooked)
        assert (torch._grouped_mm, newer._grouped_mm) == (own, hook)
    made: dict[str, Any] = {"make_experts_config": lambda dim, score_before_experts=True: (dim, score_before_experts)}
    _modules(monkeypatch, models_common_config_utils=SimpleNamespace(**made))
    assert layer_symbols.routed_experts(dim=3) == {"experts": (3, False)}, "a gate multiplies what its expert returns"
    _modules(monkeypatch, models_common_config_utils=SimpleNamespace(**made, make_routed_experts_config=dict))
    assert layer_symbols.routed_experts(dim=3) == {"routed_experts": {"dim": 3}}


@pytest.mark.parametrize("newest", [True, False])
def test_tensors_have_the_names_of_their_version(newest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    older, router = (
        type("Router", (), {"forward": forward})
        for forward in (lambda self, x, expert_bias: None, lambda self, x, expert_bias_E: None)
    )
    held: dict[str, Any] = {"models_moe_moe": SimpleNamespace(TokenChoiceTopKRouter=older), "models": SimpleNamespace()}
    if newest:
        config = dataclasses.make_dataclass("Config", ["lm_head"])
        held = {
            "models_common_moe": SimpleNamespace(TokenChoiceTopKRouter=router, RoutedExperts=None),
            "models_common_decoder": SimpleNamespace(Decoder=SimpleNamespace(Config=config)),
            "models_common_attention": SimpleNamespace(FusedQKVLinear=None),
        }
    _modules(monkeypatch, **held)
    layer_symbols._renamings.cache_clear()
    asked = {
        "lm_head.weight": "output.weight", "qkv_linear.wq.weight": "wq.weight", "moe.expert_bias_E": "moe.expert_bias",
        "moe.routed_experts.inner_experts.w2_EDF": "moe.experts.w2", "moe.tokens_per_expert_E": "moe.tokens_per_expert",
    }  # fmt: skip
    assert {name: layer_symbols.named(name) for name in asked} == (
        dict(zip(asked, asked, strict=True)) if newest else asked
    )
    layer_symbols._renamings.cache_clear()


def test_adamw_has_groups_of_its_own_or_multiples_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"lr": 0.5, "betas": (0.9, 0.99), "eps": 1e-8}
    flat = {"name": "AdamW", "lr": 0.5, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.2}
    groups = [("norm", 0.0, 1.0), ("head", 0.2, 3.0), (".*", 0.2, 1.0)]
    _modules(monkeypatch, components_optimizer=SimpleNamespace())
    assert symbols.adamw(groups[::2], common) == flat
    with pytest.raises(NotOffered, match="one group"):
        symbols.adamw(groups, common)
    for names, expected in (
        (["lr_multiplier", "weight_decay_multiplier"], [("norm", 1.0, 0.0), ("head", 3.0, 1.0), (".*", 1.0, 1.0)]),
        (["optimizer_name", "optimizer_kwargs"], [
            (name, "AdamW", {**common, "lr": 0.5 * share, "weight_decay": decay}) for name, decay, share in groups
        ]),
    ):  # fmt: skip
        kind = dataclasses.make_dataclass("ParamGroupConfig", ["pattern", *names])
        _modules(monkeypatch, components_optimizer=SimpleNamespace(ParamGroupConfig=kind))
        told = symbols.adamw(groups, common)
        assert [dataclasses.astuple(each) for each in told.pop("param_groups")] == expected
        assert told == ({} if "optimizer_name" in names else flat)


def test_latent_attention_gets_initializations_only_if_the_version_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for models, given, made in (
        (SimpleNamespace(_make_dsv3_attn_config=lambda *, dim: {"dim": dim}), {"rope_backend": 4}, {"dim": 3}),
        (SimpleNamespace(_make_dsv3_attn_config=lambda *, dim, rope: {"dim": dim, "rope": rope}), {"rope": 4},
         {"dim": 3, "rope": 4}),
        (SimpleNamespace(_make_dsv3_attn_config=None, make_mla_attention_config=dict), {"rope": 4},
         {"dim": 3, "rope": 4, "norm_init": 1}),
    ):  # fmt: skip
        _modules(monkeypatch, models_deepseek_v3=models)
        assert layer_symbols.latent_attention(dim=3, inits={"norm_init": 1}, **given) == made


def test_the_signature_of_a_trainers_step_shows_whether_it_counts_labels() -> None:
    def kind(step: Callable[..., None]) -> type:
        return type("Trainer", (), {"forward_backward_step": step})

    counts = kind(lambda self, *, input_dict, labels, global_valid_tokens: None)
    older = kind(lambda self, input_dict, labels: None)
    between = kind(lambda self, input_dict, labels, *, global_valid_tokens=None: None)
    assert symbols.counts_labels(type("T", (between, counts), {}))
    assert not symbols.counts_labels(type("T", (between, older), {}))


def test_an_option_that_a_version_lacks_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ties = SimpleNamespace(Config=dataclasses.make_dataclass("Config", ["enable_weight_tying"]))
    never = SimpleNamespace(__name__="DeepSeekV3Model", Config=dataclasses.make_dataclass("Config", ["dim"]))
    assert layer_symbols.tied(ties, False) == {"enable_weight_tying": False}
    assert layer_symbols.tied(never, False) == {}
    with pytest.raises(NotOffered, match="DeepSeekV3Model ties no weights"):
        layer_symbols.tied(never, True)
    _configs(monkeypatch, ParallelismConfig=["enable_sequence_parallel", "expert_tensor_parallel_degree"])
    kind = sys.modules["torchtitan.config.configs"].ParallelismConfig
    assert symbols.knows(kind, expert_tensor_parallel_degree=2, etp=2) == {"expert_tensor_parallel_degree": 2}
    assert symbols.sequence_parallel(False, 2) == {"enable_sequence_parallel": False}
    _configs(monkeypatch, ParallelismConfig=["tensor_parallel_degree"])
    assert symbols.sequence_parallel(True, 2) == symbols.sequence_parallel(False, 1) == {}
    with pytest.raises(NotOffered, match="TP has sequence parallel"):
        symbols.sequence_parallel(False, 2)


def test_blocks_are_compiled_by_the_function_of_their_version_and_get_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Any, ...]] = []
    dims = SimpleNamespace(ep_enabled=True)

    versions: dict[str, Callable[..., None]] = {
        "march": lambda model, compile_config, ep_enabled: seen.append(("march", model, compile_config, ep_enabled)),
        "june": lambda model, compile_config: seen.append(("june", model, compile_config)),
        "0.3": lambda model, *, compile_config, parallel_dims: seen.append(
            ("0.3", model, compile_config, parallel_dims)
        ),
    }
    for module, name, version in (
        ("models_llama4_parallelize", "apply_compile", "march"),
        ("distributed_compile", "apply_compile_sparse", "march"),
        ("distributed_compile", "apply_compile", "june"),
        ("distributed_compile", "apply_compile", "0.3"),
    ):
        _modules(monkeypatch, **{module: SimpleNamespace(**{name: versions[version]})})
        symbols.compiled("model", "config", dims)
    march = ("march", "model", "config", True)
    assert seen == [march, march, ("june", "model", "config"), ("0.3", "model", "config", dims)]


@pytest.mark.parametrize("name", ["ChunkedCELoss", "ChunkedLossWrapper", ""])
def test_under_tp_the_loss_is_taken_in_the_most_pieces_that_divide_a_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"CrossEntropyLoss": SimpleNamespace(Config=lambda: "whole")} if name else {}
    held = {**whole, **({name: SimpleNamespace(Config=dict)} if name else {})}
    _modules(monkeypatch, components_loss=SimpleNamespace(**held))
    for length, tp, told in ((16, 1, "whole"), (16, 2, {"num_chunks": 8}), (21, 2, {"num_chunks": 7})):
        assert symbols.loss(length, tp) == ({"loss": told} if name else {})
