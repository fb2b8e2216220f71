"""Symbols of torchtitan that moved: either form is found, and folded rows stay apart."""

import dataclasses
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any, Literal

import pytest

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="rows are tensors"),
]


@pytest.mark.parametrize("name", ["max_seq_len", "max_context_length"])
def test_the_rope_tables_length_is_passed_under_its_old_or_new_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from contracts.stacks.torchtitan import symbols

    monkeypatch.setattr(symbols, "_since_july", lambda: True)

    class Rope:
        Config = dataclasses.make_dataclass("Config", [("dim", int), (name, int), ("theta", float)])

    made = symbols.rope(Rope, dim=8, length=32, theta=10.0)
    assert dataclasses.asdict(made) == {"dim": 8, name: 32, "theta": 10.0}


def test_a_rope_table_without_either_name_of_the_length_is_reported_as_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    from contracts.stacks.torchtitan import symbols

    monkeypatch.setattr(symbols, "_since_july", lambda: True)

    class Rope:
        Config = dataclasses.make_dataclass("Config", [("dim", int), ("theta", float)])

    with pytest.raises(TypeError, match="max_seq_len"):
        symbols.rope(Rope, dim=8, length=32, theta=10.0)


@pytest.mark.parametrize("folded", [True, False])
def test_a_token_reads_only_its_own_row_in_folded_and_unfolded_batches(
    folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token becomes the sum of its own row up to it, times its position, whichever shape the layers take."""
    import torch
    from torch import Tensor, nn

    from contracts.stacks.torchtitan import symbols

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
    y_BTD = symbols.of_rows(Branch(), x_BTD, attends=True)
    assert torch.equal(y_BTD, x_BTD.cumsum(1) * torch.arange(3.0)[:, None])
    assert torch.equal(symbols.of_rows(nn.Identity(), x_BTD, attends=False), x_BTD)


def _configs(monkeypatch: pytest.MonkeyPatch, **kinds: list[str]) -> None:
    """A torchtitan whose configurations have these fields."""
    made = {kind: dataclasses.make_dataclass(kind, names) for kind, names in kinds.items()}
    for name in ("torchtitan", "torchtitan.config", "torchtitan.config.configs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**made))  # type: ignore[arg-type]


def test_the_batch_size_is_passed_in_rows_or_in_tokens_as_the_version_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    from contracts.stacks.torchtitan import symbols

    _configs(monkeypatch, TrainingConfig=["seq_len"], ParallelismConfig=["pipeline_parallel_microbatch_size"])
    monkeypatch.setattr(symbols, "_since_july", lambda: True)
    told = symbols.batch_sizes(rows=2, whole=4, total=8, length=15, tp=2)
    assert told == {"local_batch_size": 4, "global_batch_size": 8, "seq_len": 15}
    monkeypatch.setattr(symbols, "_since_july", lambda: False)
    assert symbols.batch_sizes(rows=2, whole=4, total=8, length=15, tp=2)["seq_len"] == 16
    assert symbols.microbatches(rows=2, number=4) == {"pipeline_parallel_microbatch_size": 2}
    _configs(monkeypatch, TrainingConfig=["max_context_length"], ParallelismConfig=["num_pp_microbatches"])
    assert [*symbols.batch_sizes(rows=2, whole=4, total=8, length=16, tp=1).values()] == [32, 128, 16]
    assert symbols.microbatches(rows=2, number=4) == {"num_pp_microbatches": 4}


def test_a_folded_batch_has_the_place_of_each_token_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from contracts.stacks.torchtitan import symbols

    tokens_BT, labels_BT = torch.arange(6).view(2, 3), torch.arange(6, 12).view(2, 3)
    monkeypatch.setattr(symbols, "folded", lambda: True)
    given, labels_N = symbols.batch_of(tokens_BT, labels_BT)
    assert {name: each.tolist() for name, each in given.items()} == {"input": [*range(6)], "positions": [0, 1, 2] * 2}
    assert labels_N.tolist() == [*range(6, 12)]
    monkeypatch.setattr(symbols, "folded", lambda: False)
    assert symbols.batch_of(tokens_BT, labels_BT)[0]["input"] is tokens_BT


def _modules(monkeypatch: pytest.MonkeyPatch, **held: SimpleNamespace) -> None:
    """Modules of torchtitan by their last names; none of the others can be imported."""
    from contracts.stacks.torchtitan import symbols

    def found(name: str) -> SimpleNamespace:
        if name not in held:
            raise ModuleNotFoundError(name)
        return held[name]

    short = lambda name: found(name.removeprefix("torchtitan.").replace(".", "_"))  # noqa: E731
    monkeypatch.setattr(symbols, "importlib", SimpleNamespace(import_module=short))


def test_the_checkpoint_manager_and_schedules_are_found_at_their_old_or_new_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from contracts.stacks.torchtitan import symbols

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
    from contracts.stacks.torchtitan import symbols

    fields = [("spmd_backend", Literal[own, "spmd_types"])] if own else []  # type: ignore[valid-type]
    kind = dataclasses.make_dataclass("ParallelismConfig", fields)
    for name in ("torchtitan", "torchtitan.config", "torchtitan.config.configs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(ParallelismConfig=kind))  # type: ignore[arg-type]
    assert symbols.dtensors().get("spmd_backend") == told


def test_experts_and_their_grouped_products_are_found_at_their_old_or_new_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from contracts.stacks.torchtitan import symbols

    class Older:
        def _experts_forward(self) -> None: ...
        def forward(self) -> None: ...

    class Newer:
        def forward(self) -> None: ...
        def _grouped_mm(self) -> None: ...

    own, hook = torch._grouped_mm, Newer._grouped_mm
    for kind in (Older, Newer):
        routed = {"RoutedExperts": None} if kind is Newer else {}
        _modules(monkeypatch, models_common_moe=SimpleNamespace(GroupedExperts=kind, **routed))
        symbols.place_of_experts.cache_clear()
        assert symbols.of_experts() is (Older._experts_forward if kind is Older else Newer.forward)
        assert symbols.place_of_experts() == ("experts" if kind is Older else "routed_experts.inner_experts")
        with symbols.products_by(len):
            assert (torch._grouped_mm is len, Newer._grouped_mm is len) == (kind is Older, kind is Newer)
        assert (torch._grouped_mm, Newer._grouped_mm) == (own, hook)
    symbols.place_of_experts.cache_clear()
    made = {"make_experts_config": dict}
    _modules(monkeypatch, models_common_config_utils=SimpleNamespace(**made))
    assert symbols.routed_experts(dim=3) == {"experts": {"dim": 3}}
    _modules(monkeypatch, models_common_config_utils=SimpleNamespace(**made, make_routed_experts_config=dict))
    assert symbols.routed_experts(dim=3) == {"routed_experts": {"dim": 3}}


def test_latent_attention_gets_initializations_only_if_the_version_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from contracts.stacks.torchtitan import symbols

    older = SimpleNamespace(_make_dsv3_attn_config=dict)
    newer = SimpleNamespace(_make_dsv3_attn_config=None, make_mla_attention_config=dict)
    for models, made in ((older, {"dim": 3}), (newer, {"dim": 3, "norm_init": 1})):
        _modules(monkeypatch, models_deepseek_v3=models)
        assert symbols.latent_attention(dim=3, inits={"norm_init": 1}) == made


def test_the_signature_of_a_trainers_step_shows_whether_it_counts_labels() -> None:
    from contracts.stacks.torchtitan import symbols

    class Counts:
        def forward_backward_step(self, *, input_dict: Any, labels: Any, global_valid_tokens: Any) -> None: ...

    class Older:
        def forward_backward_step(self, input_dict: Any, labels: Any) -> None: ...

    class Between:
        def forward_backward_step(self, input_dict: Any, labels: Any, *, global_valid_tokens: Any = None) -> None: ...

    assert symbols.counts_labels(type("T", (Between, Counts), {}))
    assert not symbols.counts_labels(type("T", (Between, Older), {}))
