"""The places in torchtitan of what this adapter uses: one function a symbol, which says since when it is as it is.

Main was tried as of b5bcd76 of 21 August 2026.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn


def rope(kind: Any, *, dim: int, length: int, theta: float) -> Any:
    """A configuration of rope; its table's length is `max_context_length` since August 2026, before `max_seq_len`. Up
    to June it is refused where it is less than the length in `batch_sizes`."""
    name = "max_context_length" if "max_context_length" in _fields(kind.Config) else "max_seq_len"
    return kind.Config(**{"dim": dim, name: length if _since_july() else length + 16, "theta": theta})


@functools.cache
def folded() -> bool:
    """Whether its layers take the tokens of all rows in one dimension: since "fold batch dim" (#4121, August 2026)."""
    try:
        from torchtitan.models.common.moe import TokenChoiceTopKRouter
    except ModuleNotFoundError:  # 0.2.2, whose models lie elsewhere
        return False
    return "x_TD" in inspect.signature(TokenChoiceTopKRouter.forward).parameters


class Rows:
    """How many tokens a row has while its rows are folded; whoever calls a layer or a trainer says so before."""

    length = 1


def by_rows(attend: Callable[..., Tensor], *qkv_TNH: Tensor, **named: Any) -> Tensor:
    """Attention of folded rows, one row at a time."""
    split = (each.view(-1, Rows.length, *each.shape[1:]) for each in qkv_TNH)
    return attend(*split, **named).flatten(0, 1)


@functools.cache
def attention() -> Any:
    """What computes attention on a CPU: its ScaledDotProductAttention. It takes (B, L, N, H) of folded rows too,
    and a CPU has no backward pass of flex_attention, whose masks would keep rows apart: so it gets one at a time.
    """
    from torchtitan.models.common.attention import ScaledDotProductAttention

    if not folded():
        return ScaledDotProductAttention

    class OneRowAtATime(ScaledDotProductAttention):  # type: ignore[misc]  # torchtitan is not installed here
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(ScaledDotProductAttention.Config):  # type: ignore[misc]
            pass

        def forward(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, **named: Any) -> Tensor:
            """Its arguments are called as flex_attention's: TP cuts them by their names."""
            own = functools.partial(ScaledDotProductAttention.forward, self)
            return by_rows(own, q_TNH, k_TNH, v_TNH, **named)

    return OneRowAtATime


def of_rows(branch: nn.Module, x_BTD: Tensor, *, attends: bool) -> Tensor:
    """A branch of a layer on rows of tokens. If rows are folded, each has its own positions."""
    if not folded():
        y_BTD: Tensor = branch(x_BTD, None) if attends else branch(x_BTD)
        return y_BTD
    rows, length, _ = x_BTD.shape
    Rows.length = length
    told = (None, torch.arange(length).repeat(rows)) if attends else ()
    y_TD: Tensor = branch(x_BTD.flatten(0, 1), *told)
    return y_TD.view_as(x_BTD)


def data_loader() -> Any:
    """The base of its data loaders: in `components.data.loader` since August 2026, or `components.dataloader`."""
    try:
        return importlib.import_module("torchtitan.components.data.loader").BaseDataLoader
    except ModuleNotFoundError:
        return importlib.import_module("torchtitan.components.dataloader").BaseDataLoader


def checkpoint_manager() -> Any:
    """Its checkpoint manager: in `components.checkpointer` since August 2026, or `components.checkpoint`."""
    try:
        return importlib.import_module("torchtitan.components.checkpointer").CheckpointManager
    except ModuleNotFoundError:
        return importlib.import_module("torchtitan.components.checkpoint").CheckpointManager


def dtensors() -> dict[str, Any]:
    """The option that cuts tensors as DTensors: a backend since June 2026, called `default` until August."""
    from torchtitan.config.configs import ParallelismConfig

    said = typing.get_args(typing.get_type_hints(ParallelismConfig).get("spmd_backend"))
    return {"spmd_backend": "partial_dtensor" if "partial_dtensor" in said else "default"} if said else {}


def schedules() -> Any:
    """Its containers of schedules: beside its optimizers since August 2026, before in `components.lr_scheduler`."""
    optimizer = importlib.import_module("torchtitan.components.optimizer")
    if hasattr(optimizer, "LRSchedulersContainer"):
        return optimizer.LRSchedulersContainer
    return importlib.import_module("torchtitan.components.lr_scheduler").LRSchedulersContainer


def routed_experts(**named: Any) -> dict[str, Any]:
    """The argument of `make_moe_config` that has the experts: `routed_experts` since July 2026, before `experts`."""
    utils = importlib.import_module("torchtitan.models.common.config_utils")
    if hasattr(utils, "make_routed_experts_config"):
        return {"routed_experts": utils.make_routed_experts_config(**named)}
    return {"experts": utils.make_experts_config(**named)}


def latent_attention(*, inits: dict[str, Any], **named: Any) -> Any:
    """The configuration of latent attention: `make_mla_attention_config` since August 2026, before a private function
    that takes no initializations and has its own."""
    models = importlib.import_module("torchtitan.models.deepseek_v3")
    if hasattr(models, "make_mla_attention_config"):
        return models.make_mla_attention_config(**inits, **named)
    return models._make_dsv3_attn_config(**named)


@functools.cache
def place_of_experts() -> str:
    """The names under which a layer with experts has their matrices."""
    moe = importlib.import_module("torchtitan.models.common.moe")
    return "routed_experts.inner_experts" if hasattr(moe, "RoutedExperts") else "experts"


def of_experts() -> FunctionType:
    """The function that multiplies by the experts' matrices: `GroupedExperts.forward` since July 2026, before
    `_experts_forward`."""
    experts = importlib.import_module("torchtitan.models.common.moe").GroupedExperts
    found: FunctionType = getattr(experts, "_experts_forward", experts.forward)
    return found


@contextlib.contextmanager
def products_by(one_by_one: Callable[..., Tensor]) -> Iterator[None]:
    """Let experts take another product: that of their hook `_grouped_mm` since August 2026, before torch's."""
    experts = importlib.import_module("torchtitan.models.common.moe").GroupedExperts
    owner: Any = experts if hasattr(experts, "_grouped_mm") else torch
    own = owner._grouped_mm
    owner._grouped_mm = one_by_one
    try:
        yield
    finally:
        owner._grouped_mm = own


def counts_labels(trainer: type) -> bool:
    """Whether its trainer counts the labels of a step over all ranks: since "Fix loss computation by handling valid
    token imbalance" (#2206, January 2026)."""
    above = [each for each in trainer.__mro__[::-1] if "forward_backward_step" in vars(each)]
    return "global_valid_tokens" in inspect.signature(vars(above[0])["forward_backward_step"]).parameters


def recomputation(full: bool) -> Any:
    """The configuration of recomputation: a class each since July 2026, None for none; before one class with modes."""
    if _since_july():
        kind = importlib.import_module("torchtitan.distributed.activation_checkpoint").FullAC
        return kind.Config() if full else None
    return importlib.import_module("torchtitan.config.configs").ActivationCheckpointConfig(
        mode="full" if full else "none"
    )


def recompute(model: Any, config: Any, folder: str) -> None:
    """Let a model recompute as a configuration of `recomputation` says."""
    if hasattr(config, "build"):
        config.build(dump_folder=folder).apply(model)
    elif config is not None and config.mode != "none":
        importlib.import_module("torchtitan.distributed.activation_checkpoint").apply_ac(model, config)


def without_graphs() -> dict[str, bool]:
    """The option against CUDA graphs, of which its training knows since August 2026."""
    from torchtitan.config.configs import TrainingConfig

    return {"disable_cuda_graphs": True} if "disable_cuda_graphs" in _fields(TrainingConfig) else {}


def batch_sizes(*, rows: int, whole: int, total: int, length: int, tp: int) -> dict[str, int]:
    """The fields of its training configuration that say how large a batch is: in tokens of a microbatch since August
    2026, before in rows of what a pipeline cuts. Up to June 2026 each model asserts that their length is a multiple of
    2 TP; it is given the next one, and rows stay as long as they are.

    Args:
        rows: of one microbatch on one rank. whole: of all microbatches of one pass of a pipeline. total: of all ranks.
    """
    from torchtitan.config.configs import TrainingConfig

    if "seq_len" in _fields(TrainingConfig):
        length = length if _since_july() else -(-length // (2 * tp)) * 2 * tp
        return {"local_batch_size": whole, "global_batch_size": total, "seq_len": length}
    return {
        "num_tokens_per_microbatch_per_dp_rank": rows * length, "num_tokens_per_train_step": total * length,
        "max_context_length": length,
    }  # fmt: skip


def microbatches(*, rows: int, number: int) -> dict[str, int]:
    """How a pipeline cuts a batch: into so many microbatches since August 2026, before into those of so many rows."""
    from torchtitan.config.configs import ParallelismConfig

    if "num_pp_microbatches" in _fields(ParallelismConfig):
        return {"num_pp_microbatches": number}
    return {"pipeline_parallel_microbatch_size": rows}


def batch_of(tokens_BT: Tensor, labels_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch as its trainer reads it: with the place of each token in its row where rows are folded."""
    if not folded():
        return {"input": tokens_BT}, labels_BT
    rows, length = tokens_BT.shape
    Rows.length = length
    return {"input": tokens_BT.flatten(), "positions": torch.arange(length).repeat(rows)}, labels_BT.flatten()


@functools.cache
def _since_july() -> bool:
    """Whether recomputation has a class for each kind: since July 2026."""
    return hasattr(importlib.import_module("torchtitan.distributed.activation_checkpoint"), "FullAC")


def _fields(kind: Any) -> set[str]:
    return {each.name for each in dataclasses.fields(kind)}
