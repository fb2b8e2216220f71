"""The places in torchtitan of what this adapter uses: one function a symbol, which says since when it is as it is.

Main was tried as of b5bcd76 of 21 August 2026.
"""

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contracts.spec import NotOffered
from contracts.stacks.torchtitan.layer_symbols import fields, moe, signed, since_july


@functools.cache
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # a compiler would trace the import
def folded() -> bool:
    """Whether its layers take the tokens of all rows in one dimension: since "fold batch dim" (#4121, August 2026)."""
    return "x_TD" in signed(moe().TokenChoiceTopKRouter.forward)


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


def of_rows(branch: nn.Module, x_BTD: Tensor, *, attends: bool, rope: Tensor | None = None) -> Tensor:
    """A branch of a layer on rows of tokens. If rows are folded, each has its own positions. `rope` is the table of the
    model, which an attention gets up to June 2026."""
    if not folded():
        told = (None,) if rope is None else (rope, None)
        y_BTD: Tensor = branch(x_BTD, *told) if attends else branch(x_BTD)
        return y_BTD
    rows, length, _ = x_BTD.shape
    Rows.length = length
    places_T = torch.arange(length, device=x_BTD.device).repeat(rows)
    y_TD: Tensor = branch(x_BTD.flatten(0, 1), *((None, places_T) if attends else ()))
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
    """The option that cuts tensors as DTensors: a backend since June 2026, called `default` until August. Its
    configurations lie elsewhere up to February."""
    try:
        from torchtitan.config.configs import ParallelismConfig
    except ModuleNotFoundError:
        return {}
    said = typing.get_args(typing.get_type_hints(ParallelismConfig).get("spmd_backend"))
    return {"spmd_backend": "partial_dtensor" if "partial_dtensor" in said else "default"} if said else {}


def schedules() -> Any:
    """Its containers of schedules: beside its optimizers since August 2026, before in `components.lr_scheduler`."""
    optimizer = importlib.import_module("torchtitan.components.optimizer")
    if hasattr(optimizer, "LRSchedulersContainer"):
        return optimizer.LRSchedulersContainer
    return importlib.import_module("torchtitan.components.lr_scheduler").LRSchedulersContainer


def counts_labels(trainer: type) -> bool:
    """Whether its trainer counts the labels of a step over all ranks: since "Fix loss computation by handling valid
    token imbalance" (#2206, January 2026)."""
    above = [each for each in trainer.__mro__[::-1] if "forward_backward_step" in vars(each)]
    return "global_valid_tokens" in inspect.signature(vars(above[0])["forward_backward_step"]).parameters


def recomputation(full: bool) -> Any:
    """The configuration of recomputation: a class each since July 2026, None for none; before one class with modes."""
    if since_july():
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


def knows(kind: Any, **named: Any) -> dict[str, Any]:
    """Those of these options that this version has: `disable_cuda_graphs` since August 2026, since May
    `enable_structured_logging`, and up to April `expert_tensor_parallel_degree` and `etp`."""
    return {name: value for name, value in named.items() if name in fields(kind)}


def loss(length: int, tp: int) -> dict[str, Any]:
    """The loss, a part of the configuration since "ChunkedCELoss" (#2937, April 2026); before, a part of the model's.
    Under TP it is taken in pieces of a row, as its registry has it: by `ChunkedLossWrapper` since June 2026.

    Args:
        length: what is a multiple of the number of pieces, which is 8 at most.
    """
    module = importlib.import_module("torchtitan.components.loss")
    if not hasattr(module, "CrossEntropyLoss"):
        return {}
    if tp == 1:
        return {"loss": module.CrossEntropyLoss.Config()}
    pieces = getattr(module, "ChunkedLossWrapper", None) or module.ChunkedCELoss
    return {"loss": pieces.Config(num_chunks=max(number for number in range(1, 9) if length % number == 0))}


def sequence_parallel(sp: bool, tp: int) -> dict[str, bool]:
    """The option of sequence parallel: since "Decouple SP with TP" (March 2026); before, TP has it always.

    Raises:
        NotOffered: for TP without it, where there is no option.
    """
    from torchtitan.config.configs import ParallelismConfig

    if "enable_sequence_parallel" in fields(ParallelismConfig):
        return {"enable_sequence_parallel": sp}
    if tp > 1 and not sp:
        raise NotOffered("torchtitan: up to March 2026 its TP has sequence parallel", "stack")
    return {}


def in_groups() -> bool:
    """Whether parameters have groups: since "introduce param_groups to optimizer config" (#2859, April 2026)."""
    return hasattr(importlib.import_module("torchtitan.components.optimizer"), "ParamGroupConfig")


def adamw(groups: Sequence[tuple[str, float, float]], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of AdamW with these patterns, decays and shares of the rate: each group has all of its own since
    "support mixed optimizers" (#3269, June 2026), before multiples of common ones, up to April there are no groups.

    Raises:
        NotOffered: for a rate of its own, where there are no groups.
    """
    module = importlib.import_module("torchtitan.components.optimizer")
    if in_groups() and "optimizer_name" in fields(module.ParamGroupConfig):
        made = [{**kwargs, "lr": kwargs["lr"] * share, "weight_decay": decay} for _, decay, share in groups]
        named = zip(groups, made, strict=True)
        return {"param_groups": [
            module.ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs=own)
            for (pattern, _, _), own in named
        ]}  # fmt: skip
    (beta1, beta2), whole = kwargs["betas"], max(decay for _, decay, _ in groups)
    common = {"name": "AdamW", "lr": kwargs["lr"], "beta1": beta1, "beta2": beta2, "eps": kwargs["eps"]}
    common["weight_decay"] = whole
    if in_groups():
        return {**common, "param_groups": [
            module.ParamGroupConfig(pattern=name, lr_multiplier=share, weight_decay_multiplier=decay / (whole or 1.0))
            for name, decay, share in groups
        ]}  # fmt: skip
    if any(share != 1.0 for _, _, share in groups):
        raise NotOffered("torchtitan: up to April 2026 its optimizers have one group of parameters", "stack")
    return common


def muon() -> Any:
    """The module of its DistMuon: since "Add DistributedMuon" (#4060, August 2026), with arguments of its own.

    Raises:
        NotOffered: where no optimizer has arguments of its own.
    """
    container = importlib.import_module("torchtitan.components.optimizer").OptimizersContainer
    if "optimizer_factory_kwargs_by_name" not in fields(container.Config):
        raise NotOffered("torchtitan: up to August 2026 its optimizers are Adam and AdamW", "stack")
    return importlib.import_module("torchtitan.distributed.flex_shard.dist_muon")


def compiled(model: Any, config: Any, parallel_dims: Any) -> None:
    """Compile each block, by `apply_compile`; up to April 2026 by `apply_compile_sparse`, and up to March by a function
    of Llama 4 that asks whether experts are spread."""
    try:
        module = importlib.import_module("torchtitan.distributed.compile")
    except ModuleNotFoundError:
        module = importlib.import_module("torchtitan.models.llama4.parallelize")
    apply = getattr(module, "apply_compile_sparse", None) or module.apply_compile
    told = {"parallel_dims": parallel_dims, "ep_enabled": parallel_dims.ep_enabled}
    apply(model, compile_config=config, **{name: each for name, each in told.items() if name in signed(apply)})


def batch_sizes(*, rows: int, whole: int, total: int, length: int, tp: int) -> dict[str, int]:
    """The fields of its training configuration that say how large a batch is: in tokens of a microbatch since August
    2026, before in rows of what a pipeline cuts. Up to June 2026 each model asserts that their length is a multiple of
    2 TP; it is given the next one, and rows stay as long as they are.

    Args:
        rows: of one microbatch on one rank. whole: of all microbatches of one pass of a pipeline. total: of all ranks.
    """
    from torchtitan.config.configs import TrainingConfig

    if "seq_len" in fields(TrainingConfig):
        length = length if since_july() else -(-length // (2 * tp)) * 2 * tp
        return {"local_batch_size": whole, "global_batch_size": total, "seq_len": length}
    return {
        "num_tokens_per_microbatch_per_dp_rank": rows * length, "num_tokens_per_train_step": total * length,
        "max_context_length": length,
    }  # fmt: skip


def microbatches(*, rows: int, number: int) -> dict[str, int]:
    """How a pipeline cuts a batch: into so many microbatches since August 2026, before into those of so many rows."""
    from torchtitan.config.configs import ParallelismConfig

    if "num_pp_microbatches" in fields(ParallelismConfig):
        return {"num_pp_microbatches": number}
    return {"pipeline_parallel_microbatch_size": rows}


def batch_of(tokens_BT: Tensor, labels_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch as its trainer reads it: with the place of each token in its row where rows are folded."""
    if not folded():
        return {"input": tokens_BT}, labels_BT
    rows, length = tokens_BT.shape
    Rows.length = length
    return {"input": tokens_BT.flatten(), "positions": torch.arange(length).repeat(rows)}, labels_BT.flatten()
