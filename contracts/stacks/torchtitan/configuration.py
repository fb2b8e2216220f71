"""A session as torchtitan's own configuration, and the sessions that it cannot run."""

import dataclasses
import functools
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.spec import Abilities, Execution, NotOffered, Recipe, Session, decline, needs
from contracts.stacks.kit import declining
from contracts.stacks.torchtitan import layer_symbols, shims, symbols, weight_mapping
from contracts.stacks.torchtitan.model import config_of


def declined(recipe: Recipe, execution: Execution, question: str, who: str, abilities: Abilities) -> None:
    """Decline what a version of torchtitan cannot build or run, or not on a CPU.

    Raises:
        NotOffered: with the reason, and the version that supports it if there is one.
    """
    precision = "float32" if execution.precision == "declared" and recipe.dtype == "fp32" else execution.precision
    wanted = needs.features(recipe, execution, trains=question == "train") | {precision} - {"declared"}
    declining.declined(who, abilities, wanted, question)
    moe = recipe.moe
    odd = is_half(recipe, execution) and moe is not None and (recipe.hidden % 8 or moe.expert_hidden % 8)
    decline(who, {"stack": {
        "it compiles each block, and never the whole model": execution.compile == "model",
        "its grouped product in bfloat16 takes experts whose widths are multiples of 8": odd,
    }})  # fmt: skip


def is_half(recipe: Recipe, execution: Execution) -> bool:
    """Whether its parameters are used in bfloat16. They and what the optimizer has are held in float32."""
    return execution.precision == "declared" and recipe.dtype == "bf16"


def is_bare(session: Session) -> bool:
    """Whether the model is run by itself, on one rank: that needs no `fully_shard`, unless it rounds parameters or
    makes them the DTensors that DistMuon wants.
    """
    recipe, execution = session.recipe, session.execution
    return execution.world == 1 and not is_half(recipe, execution) and recipe.optim.rule != "muon"


def rows_of(session: Session) -> int:
    """The rows of one microbatch on one rank."""
    execution = session.execution
    total = len(numerics.tensor(session.batches[0].tokens)) if session.batches else session.recipe.batch.total
    return max(total // (execution.world // (execution.degrees.pp * execution.degrees.tp) * execution.microbatches), 1)


def configuration(session: Session, folder: str) -> Any:
    """The session as a `Trainer.Config`."""
    from torchtitan.components.validate import Validator
    from torchtitan.config.configs import CompileConfig, DebugConfig, TrainingConfig
    from torchtitan.trainer import Trainer

    from contracts.stacks.torchtitan.observed_trainer import NullTokenizer, Rows, Seen

    recipe, execution = session.recipe, session.execution
    total = len(numerics.tensor(session.batches[0].tokens)) if session.batches else recipe.batch.total
    dp = execution.world // (execution.degrees.pp * execution.degrees.tp)
    staged = execution.degrees.pp > 1
    rows = total // dp if staged else total // (dp * execution.microbatches)
    kept = bool(session.load or session.save)
    given, passes = validation_of(session, dp, rows)
    return Trainer.Config(
        model_spec=_spec(session),
        dump_folder=folder,
        metrics=Seen.Config(),
        tokenizer=NullTokenizer.Config(),
        dataloader=Rows.Config(),
        **symbols.loss(_common_length(session), execution.degrees.tp),
        optimizer=_optimizer(recipe, session.rates),
        lr_scheduler=_schedule(recipe),
        training=TrainingConfig(
            **symbols.batch_sizes(
                rows=rows_of(session), whole=rows, total=total, length=recipe.seq_length, tp=execution.degrees.tp
            ),
            max_norm=recipe.optim.clip or math.inf, steps=max(recipe.optim.steps, session.steps),
            dtype="float32", mixed_precision_param="bfloat16" if is_half(recipe, execution) else "float32",
            mixed_precision_reduce="float32", **symbols.knows(TrainingConfig, disable_cuda_graphs=True), gc_freq=1000,
        ),
        parallelism=_parallelism(recipe, execution, rows_of(session)),
        checkpoint=symbols.checkpoint_manager().Config(
            enable=kept, folder=session.load or session.save or "checkpoint", interval=1, keep_latest_k=0,
            last_save_model_only=False,
        ),
        activation_checkpoint=symbols.recomputation(execution.recompute or recipe.recompute == "full"),
        validator=Validator.Config(
            enable=bool(given), freq=1, steps=passes or -1, dataloader=Rows.Config(given=given, size=rows)
        ),
        compile=CompileConfig(enable=execution.compile != "none", components=["model"], backend=execution.backend),
        debug=DebugConfig(seed=recipe.seed, **symbols.knows(DebugConfig, enable_structured_logging=False)),
    )  # fmt: skip


def _common_length(session: Session) -> int:
    """The longest length of which the rows of all batches are multiples."""
    lengths = [each.tokens.shape[1] for each in (*session.batches, *session.validation)]
    return math.gcd(*lengths) if lengths else session.recipe.seq_length


def validation_of(session: Session, dp: int, rows: int) -> tuple[tuple[tuple[Tensor, Tensor], ...], int]:
    """Tokens and labels of each batch of a validation, and in how many passes a rank reads them."""
    given = tuple((numerics.tensor(each.tokens), numerics.tensor(each.labels)) for each in session.validation)
    return given, sum(math.ceil(len(each) // dp / rows) for each, _ in given)


def _spec(session: Session) -> Any:
    """What its registry has for the model of a recipe, with the recipe's sizes in place of a flavor's."""
    recipe = session.recipe
    name = "qwen3" if recipe.mla is None else "deepseek_v3"
    registered = importlib.import_module(f"torchtitan.models.{name}").model_registry("debugmodel")
    spread = registered.parallelize_fn
    if is_half(recipe, session.execution) and session.execution.device == "cpu":
        spread = functools.partial(_with_wide_gates, spread)
    return dataclasses.replace(
        registered, flavor=recipe.name, model=config_of(recipe, session.rates), state_dict_adapter=None,
        parallelize_fn=_by_itself if is_bare(session) else spread,
    )  # fmt: skip


def _by_itself(
    model: Any, *, ac_config: Any, compile_config: Any, parallel_dims: Any, dump_folder: str, **_: Any
) -> Any:
    """What torchtitan's `parallelize_fn` does in one process: recompute blocks, compile them, or nothing."""
    symbols.recompute(model, ac_config, dump_folder)
    if compile_config.enable:
        symbols.compiled(model, compile_config, parallel_dims)
    return model


def _with_wide_gates(spread: Callable[..., Any], model: Any, **told: Any) -> Any:
    """Its `parallelize_fn`, over a model whose routers take their product in float32."""
    for module in model.modules():
        if isinstance(module, layer_symbols.moe().TokenChoiceTopKRouter):
            shims.wide_gate(module, torch.bfloat16)
    return spread(model, **told)


def _optimizer(recipe: Recipe, rates: Mapping[str, float]) -> Any:
    """Under AdamW two parameter groups: first the parameters without decay, then the rest. Before them come Muon's, and
    parameters with a rate of their own."""
    from torchtitan.components import optimizer as module

    optim = recipe.optim
    common = {"lr": optim.lr, "betas": (optim.beta1, optim.beta2), "eps": 1e-8}
    decays = ((r"norm\.weight$", 0.0, 1.0), (r".*", optim.weight_decay, 1.0))
    groups = symbols.adamw([*_apart(recipe, rates), *decays], common)
    if optim.rule == "adamw":
        return module.OptimizersContainer.Config(**groups, implementation="fused")
    names = weight_mapping.orthogonal(recipe)
    scaled = {"lr": optim.lr, "weight_decay": optim.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
    muon = module.ParamGroupConfig(
        pattern=f"^({'|'.join(map(re.escape, names))})$", optimizer_name="DistMuon",
        optimizer_kwargs={**scaled, "fused": False, "foreach": False},
    )  # fmt: skip
    return module.OptimizersContainer.Config(
        param_groups=[muon, *groups["param_groups"]], implementation="fused",
        optimizer_factory_kwargs_by_name={"DistMuon": _layouts(names)},
    )  # fmt: skip


def _apart(recipe: Recipe, rates: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Pattern, decay and share of the rate of each parameter that has a rate of its own.

    Raises:
        NotOffered: for one of several that are one tensor here.
    """
    for link in weight_mapping.links(recipe):
        shares = {rates.get(name, 1.0) for name in link.ours}
        if len(shares) > 1:
            raise NotOffered(f"torchtitan: {', '.join(link.ours)} are one tensor, with one rate", "case")
        (share,) = shares
        if share != 1.0 and "expert_bias" not in link.theirs:
            decay = 0.0 if link.theirs.endswith("norm.weight") else recipe.optim.weight_decay
            yield f"^{re.escape(link.theirs)}$", decay, share


def _layouts(names: Sequence[str]) -> dict[str, Any]:
    """The rank on which DistMuon computes an update: each matrix on one rank, experts on those that have them."""
    from torch.distributed.tensor import Shard
    from torchtitan.distributed.flex_shard import BucketConfig, ComputeLayout, Owned

    whole, apart = ComputeLayout({"fsdp": Owned()}), ComputeLayout({"fsdp": Shard(0)})
    layouts = {name: apart if layer_symbols.named("routed_experts.inner_experts.") in name else whole for name in names}
    return {"compute_sharding_by_fqn": layouts, "bucket_configs": (BucketConfig(patterns=tuple(names)),)}


def _schedule(recipe: Recipe) -> Any:
    optim = recipe.optim
    decay = {"constant": 0.0, "WSD": max(1, optim.steps // 5) / optim.steps}.get(optim.schedule)
    return symbols.schedules().Config(
        warmup_steps=optim.warmup,
        total_steps=optim.steps,
        decay_ratio=decay,
        decay_type="cosine" if optim.schedule == "cosine" else "linear",
        min_lr_factor=optim.min_lr / optim.lr,
    )


def _parallelism(recipe: Recipe, execution: Execution, micro: int) -> Any:
    from torchtitan.config.configs import ParallelismConfig

    degrees = execution.degrees
    dp = execution.world // (degrees.pp * degrees.tp)
    replicas = execution.replicas if execution.fsdp else dp
    segments = [len(part) // 2 for part in recipe.pattern.split("|")]
    return ParallelismConfig(
        data_parallel_replicate_degree=replicas,
        data_parallel_shard_degree=dp // replicas,
        tensor_parallel_degree=degrees.tp,
        **symbols.sequence_parallel(degrees.sp, degrees.tp),
        **symbols.knows(ParallelismConfig, expert_tensor_parallel_degree=degrees.expert_tp),
        expert_parallel_degree=degrees.ep,
        pipeline_parallel_degree=degrees.pp,
        pipeline_parallel_schedule="Interleaved1F1B" if execution.schedule == "interleaved" else "1F1B",
        **symbols.microbatches(rows=micro, number=execution.microbatches),
        module_fqns_per_model_part=_parts(segments) if degrees.pp > 1 and len(segments) > 1 else None,
        **symbols.dtensors(),
    )


def _parts(segments: list[int]) -> list[list[str]]:
    """The modules of each stage: its layers, with the embedding on the first stage and the head on the last."""
    first, found = 0, []
    for size in segments:
        found.append([f"layers.{number}" for number in range(first, first + size)])
        first += size
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "lm_head"]
    return found
