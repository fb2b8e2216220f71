"""The `Trainer` of torchtitan 0.2.2, observed. Batches come from the session."""

import functools
import math
from collections.abc import Iterator
from typing import Any

from torchtitan.components import validate
from torchtitan.components.loss import build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import build_optimizers, build_optimizers_with_moe_load_balancing
from torchtitan.config import JobConfig
from torchtitan.distributed import ParallelDims
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, parallelize_deepseekv3
from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
from torchtitan.protocols import train_spec
from torchtitan.train import Trainer

from contracts.instruments import numerics
from contracts.spec import Recipe, Session, decline
from contracts.stacks.torchtitan.configuration import is_half, validation_of
from contracts.stacks.torchtitan.model import config_of
from contracts.stacks.torchtitan.recorded_step import (
    Given,
    Logged,
    RecordsGradients,
    among,
    by_itself,
    divided,
    own_rows,
)

NAME = "asked"


class NullDataLoader:
    """Replaces the data loader of a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class Rows:
    """Replaces the data set of a validation: this rank's rows of what is given."""

    def __init__(self, given: Given, size: int, ranks: int, rank: int) -> None:
        divided(given, ranks)
        self.given, self.size, self.ranks, self.rank = given, size, ranks, rank

    def __iter__(self) -> Iterator[Any]:
        return own_rows(self.given, self.ranks, self.rank, self.size)


def _validator(given: Given, **told: Any) -> Any:
    """Its validator over other batches: what builds its data is looked up by name where it is built."""
    size, real = told["job_config"].validation.local_batch_size, validate.build_text_validation_dataloader
    validate.build_text_validation_dataloader = lambda *, dp_world_size, dp_rank, **_: Rows(
        given, size, dp_world_size, dp_rank
    )
    try:
        return validate.build_validator(**told)
    finally:
        validate.build_text_validation_dataloader = real


class Observed(RecordsGradients, Trainer):  # type: ignore[misc]
    """Its trainer, in a world that is initialised. A single process gets degrees of its own."""

    def init_distributed(self) -> ParallelDims:
        return by_itself() if self.alone else among(self.job_config.parallelism)


class OneProcess(Observed):
    alone = True


class OneRank(Observed):
    alone = False


def build_trainer(session: Session, folder: str, *, even: bool = False) -> Observed:
    """Its trainer, from the session as its own configuration and its own `TrainSpec`; with `even` routers."""
    recipe = session.recipe
    kind = OneProcess if session.execution.world == 1 else OneRank
    config = _configuration(session, folder)
    dp = session.execution.world // session.execution.degrees.tp
    given, passes = validation_of(session, dp, config.training.local_batch_size)
    config.validation.enable, config.validation.freq, config.validation.steps = bool(given), 1, passes or -1
    config.validation.local_batch_size = config.training.local_batch_size
    spec = _spec(recipe)
    spec.build_validator_fn = functools.partial(_validator, given)
    spec.model_args = {NAME: config_of(recipe)}
    train_spec._extra_train_specs.pop(NAME, None)  # private in 0.2.2: nothing public takes a specification back
    train_spec.register_train_spec(NAME, spec)
    config.debug.moe_force_load_balance = even
    return kind(config)


def _spec(recipe: Recipe) -> Any:
    grouped, biased = recipe.mla is None, recipe.moe is not None and recipe.moe.selection_bias
    return train_spec.TrainSpec(
        model_cls=Qwen3Model if grouped else DeepSeekV3Model,
        model_args={},
        parallelize_fn=parallelize_qwen3 if grouped else parallelize_deepseekv3,
        pipelining_fn=None,
        build_optimizers_fn=build_optimizers_with_moe_load_balancing if biased else build_optimizers,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_dataloader_fn=lambda **_: NullDataLoader(),
        build_tokenizer_fn=None,
        build_loss_fn=build_cross_entropy_loss,
        build_metrics_processor_fn=Logged,
    )


def _configuration(session: Session, folder: str) -> Any:
    """The session as its `JobConfig`."""
    recipe, execution = session.recipe, session.execution
    optim, degrees = recipe.optim, execution.degrees
    decline("torchtitan", {"stack": {
        "its DeepSeek-V3 takes the ranks of experts out of those that shard": (
            recipe.mla and degrees.ep > 1 and not execution.fsdp
        ),
        "a weight that is tied lies in two groups of its FSDP, which torch refuses": (
            execution.fsdp and not recipe.untied_embeddings
        ),
    }})  # fmt: skip
    total = len(numerics.tensor(session.batches[0].tokens)) if session.batches else recipe.batch.total
    dp = execution.world // degrees.tp
    config: Any = JobConfig()
    config.model.name, config.model.flavor, config.job.dump_folder = NAME, NAME, folder
    config.debug.seed = recipe.seed
    optimizer, rate, training = config.optimizer, config.lr_scheduler, config.training
    optimizer.name, optimizer.lr, optimizer.weight_decay = "AdamW", optim.lr, optim.weight_decay
    optimizer.beta1, optimizer.beta2 = optim.beta1, optim.beta2
    rate.warmup_steps, rate.total_steps, rate.min_lr_factor = optim.warmup, optim.steps, optim.min_lr / optim.lr
    rate.decay_ratio = {"constant": 0.0, "WSD": max(1, optim.steps // 5) / optim.steps}.get(optim.schedule)
    rate.decay_type = "cosine" if optim.schedule == "cosine" else "linear"
    training.local_batch_size, training.global_batch_size = total // (dp * execution.microbatches), total
    multiple = 2 * degrees.tp  # what it asserts of it; rows are as long as they are, and the table of rope is longer
    training.seq_len, training.max_norm = -(-recipe.seq_length // multiple) * multiple, optim.clip or math.inf
    training.steps, training.gc_freq = max(optim.steps, session.steps), 1000
    training.mixed_precision_param = "bfloat16" if is_half(recipe, execution) else "float32"
    parallelism = config.parallelism
    replicas = execution.replicas if execution.fsdp else dp
    parallelism.data_parallel_replicate_degree, parallelism.data_parallel_shard_degree = replicas, dp // replicas
    parallelism.tensor_parallel_degree, parallelism.expert_parallel_degree = degrees.tp, degrees.ep
    parallelism.expert_tensor_parallel_degree = degrees.expert_tp
    kept = config.checkpoint
    kept.enable, kept.folder = bool(session.load or session.save), session.load or session.save or "checkpoint"
    kept.interval, kept.keep_latest_k, kept.last_save_model_only = 1, 0, False
    recomputed = execution.recompute or recipe.recompute == "full"
    config.activation_checkpoint.mode = "full" if recomputed else "none"
    return config
