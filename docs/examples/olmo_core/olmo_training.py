"""Runs of OLMo-core's own Trainer and TransformerTrainModule, for olmo_lane.py."""
# ruff: noqa: E402  (its packages come after what they read when they are imported)


import logging
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from contracts.instruments import numerics, traffic
from contracts.instruments.ranks import gathered
from contracts.spec import Arrays, NotOffered, Recipe, Session, Step, Tokens, refuse
from contracts.spec import pattern as patterns
from contracts.stacks.kit import worlds
from contracts.stacks.kit.adapter import Steps
from contracts.stacks.kit.links import Link

logging.disable(logging.WARNING)  # it logs each model that it builds
os.environ.setdefault("OLMO_SHARED_FS", "1")  # its ranks save into one folder

from olmo_core.config import DType
from olmo_core.data import DataCollator, NumpyFSLDataLoader, NumpyFSLDataset
from olmo_core.distributed import parallel
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.eval.lm_evaluator import LMEvaluator
from olmo_core.exceptions import OLMoConfigurationError
from olmo_core.nn.attention import AttentionConfig, NemotronMamba2Config
from olmo_core.nn.feed_forward import FeedForwardConfig
from olmo_core.nn.layer_norm import LayerNormConfig, LayerNormType
from olmo_core.nn.lm_head import LMHeadConfig
from olmo_core.nn.rope import RoPEConfig
from olmo_core.nn.transformer import TransformerBlockConfig, TransformerConfig
from olmo_core.optim import AdamWConfig, OptimGroupOverride, scheduler
from olmo_core.train import Duration, TrainerConfig, train_module
from olmo_core.train.callbacks import Callback, CheckpointerCallback


def text_of(recipe: Recipe, folder: str, rank: int, ranks: int, size: int) -> NumpyFSLDataLoader:
    """Its loader over a file of tokens, which are a recipe's text or 64 rows of noise."""
    text = np.random.default_rng(7).integers(recipe.vocab, size=64 * recipe.seq_length + 1)
    if recipe.data.path is not None:
        text = np.fromfile(str(recipe.data.path), np.uint8).astype(np.int64) % recipe.vocab
    text.astype(np.uint16).tofile(f"{folder}/text.npy")
    rows = NumpyFSLDataset(
        f"{folder}/text.npy", sequence_length=recipe.seq_length, pad_token_id=0, eos_token_id=0,
        vocab_size=recipe.vocab, dtype=np.uint16,
    )  # fmt: skip
    rows.prepare()
    if len(rows) != (len(text) - 1) // recipe.seq_length:
        raise NotOffered("OLMo-core: a row needs no token after it, so a text of whole rows has one more", "stack")
    return NumpyFSLDataLoader(
        rows, collator=DataCollator(pad_token_id=0), global_batch_size=size * recipe.seq_length,
        work_dir=folder, seed=recipe.seed, dp_world_size=ranks, dp_rank=rank,
    )  # fmt: skip


class Read(Callback):
    """The metrics of the latest step, as its loggers get them: reduced, on rank 0."""

    metrics: dict[str, float]

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        self.metrics = metrics


class Training(Steps):
    """What `Trainer._fit_epoch` does with a batch, one batch at a time."""

    own_rates = own_frozen = True

    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        super().__init__(session, links)
        if session.durable is not None:
            raise NotOffered("OLMo-core: it knows no copy of its checkpoints on other storage", "stack")
        recipe, self.folder = session.recipe, tempfile.TemporaryDirectory()
        degrees, world = session.execution.degrees, session.execution.world
        sharers = degrees.tp * degrees.cp
        self.ranks, self.rank = world // sharers, dist.get_rank() // sharers if world > 1 else 0
        parallel._WORLD_MESH = None  # a process may make one mesh of ranks, and is asked many runs here
        model = model_of(recipe, frozen=self.theirs(session.frozen)).build(init_device="cpu" if world == 1 else "meta")
        rates = {name: rate for ours, rate in session.rates.items() for name in self.theirs({ours})}
        self.module_ = train_module_of(session, rates).build(model, device=torch.device("cpu"))
        self.module = self.module_.model
        wrapped = "_checkpoint_wrapped_module."  # in the names of a block that is recomputed
        self.named = {name.replace(wrapped, ""): each for name, each in super().parameters().items()}
        self.rows: Iterator[dict[str, Any]] = iter(())
        size = self.ranks if session.batches else recipe.batch.total
        loader = text_of(recipe, self.folder.name, self.rank, self.ranks, size)
        self.read = Read()
        self.saver = CheckpointerCallback(
            save_interval=None, fixed_steps=sorted(session.save_at), max_checkpoints=session.keep, save_async=False,
            pre_train_checkpoint=False, enabled=session.save is not None,
        )  # fmt: skip
        self.trainer = TrainerConfig(
            save_folder=session.save or self.folder.name, work_dir=self.folder.name, device="cpu", save_overwrite=True,
            max_duration=Duration.steps(recipe.optim.steps), async_bookkeeping=False,
            callbacks={"read": self.read, "checkpointer": self.saver},
        ).build(self.module_, loader)  # fmt: skip

    def theirs(self, ours: Iterable[str]) -> list[str]:
        """Its names of parameters of ours."""
        found = [link for link in self.links if {*link.ours} & {*ours}]
        if whole := [link.theirs for link in found if not {*link.ours} <= {*ours}]:
            raise NotOffered(f"OLMo-core: {whole[0]} is one tensor", "stack")
        return [link.theirs for link in found]

    def parameters(self) -> Mapping[str, Tensor]:
        """Those that its optimizer has: under DDP beside tensor parallelism the model has others after a pass."""
        return self.named

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self.module_.optim,)

    def generators(self) -> Arrays:
        return numerics.arrays({"torch": torch.get_rng_state()})

    def mine(self, batch: Tokens) -> dict[str, Tensor]:
        """The rows of this rank; and how many make a microbatch, which its config has in tokens."""
        tokens, labels = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
        own, pieces = len(tokens) // self.ranks, self.session.execution.microbatches
        rows = math.ceil(own / pieces)
        if len(tokens) % self.ranks or math.ceil(own / rows) != pieces:
            raise NotOffered(f"OLMo-core: {len(tokens)} sequences are not cut so", "stack")
        self.module_.rank_microbatch_size = rows * tokens.shape[1]
        return {"input_ids": tokens.chunk(self.ranks)[self.rank], "labels": labels.chunk(self.ranks)[self.rank]}

    def told(self) -> dict[str, float]:
        """Its metrics of this step, on every rank."""
        try:
            self.trainer._log_metrics()  # as `fit` calls it; no public method does
        except RuntimeError as error:
            raise refuse("batch", f"of step {self.trainer.global_step}", str(error), "look at its loss") from None
        found = [getattr(self.read, "metrics", {})]
        if self.session.execution.world > 1:
            with traffic.unrecorded():
                dist.broadcast_object_list(found, group_src=0)
        return found[0]

    def forward(self, batch: Tokens, backward: bool) -> tuple[Tensor, Mapping[str, float]]:
        given, count = self.mine(batch), (numerics.tensor(batch.labels) != -100).sum()
        with torch.no_grad():
            out = self.module_.model_forward(**given, loss_reduction="sum", loss_div_factor=count, return_logits=True)
        loss = float(out.loss)
        if backward:
            self.module_.train_batch(given)
            loss = self.told()["train/CE loss"]
        return out.logits, {"lm": loss, "total": loss}

    def step(self, batch: Tokens) -> Step:
        return self.stepped(self.mine(batch), int((numerics.tensor(batch.labels) != -100).sum()))

    def own_step(self) -> Step:
        """A step on its own data, as its `fit` goes from epoch to epoch."""
        trainer, loader, recipe = self.trainer, self.trainer.data_loader, self.session.recipe
        given = next(self.rows, None)
        if given is None:
            if loader.batches_processed >= loader.total_batches:
                trainer.epoch += 1
                loader.reset()
            loader.reshuffle(trainer.epoch, in_memory=True)
            self.rows = iter(loader)
            given = next(self.rows)
        ids = given.pop("index").tolist()
        with traffic.unrecorded():
            every = gathered(ids) if self.ranks > 1 else (ids,)
        self.module_.rank_microbatch_size = len(ids) // self.session.execution.microbatches * recipe.seq_length
        done = self.stepped(given, recipe.batch.total * (recipe.seq_length - 1))
        return replace(done, samples=tuple(each for ids in every[:: len(every) // self.ranks] for each in ids))

    def stepped(self, given: dict[str, Any], labels: int) -> Step:
        """What its Trainer does with a batch of this rank."""
        self.trainer.global_step += 1
        self.module_.train_batch(given)
        self.note(self.trainer.global_step)
        try:
            self.module_.optim_step()
        except ZeroDivisionError as error:
            raise refuse("optim", self.session.recipe.optim, f"its schedule: {error}", "take more steps") from None
        factor, told = self.factor(), self.told()
        self.module_.zero_grads()
        self.saver.post_train_batch()
        groups = self.module_.optim.param_groups
        base = next(n for n, each in enumerate(groups) if each["initial_lr"] == self.session.recipe.optim.lr)
        loss = told["train/CE loss"]
        return Step(
            number=self.trainer.global_step, losses={"lm": loss, "total": loss}, lr=told[f"optim/LR (group {base})"],
            tokens=labels, grad_norm=told["optim/total grad norm"], clip_coef=factor, validation=self.validated(),
        )  # fmt: skip

    def validated(self) -> float | None:
        """What `EvaluatorCallback.perform_eval` reports, which makes the labels itself."""
        if self.trainer.global_step not in self.session.validate_at:
            return None
        evaluator = LMEvaluator(name="lm", batches=(), labels=("all",), device=torch.device("cpu"))
        for given in map(self.mine, self.session.validation):
            labels = given.pop("labels")
            seen = {**given, "label_mask": labels != -100, "metadata": [{"label": "all"}] * len(labels)}
            with torch.no_grad():
                out = self.module_.eval_batch(dict(seen), labels=labels)
            evaluator.update_metrics(seen, out.ce_loss, None)
        return float(evaluator.compute_metrics()["all/CE loss"])

    def save(self, folder: str) -> None: ...  # its callback did, at the end of the step

    def load(self, folder: str) -> None:
        try:
            self.trainer.load_checkpoint(folder, load_trainer_state=True, load_optim_state=True)
        except (FileNotFoundError, OLMoConfigurationError, RuntimeError, ValueError) as error:
            raise refuse("load", folder, str(error), "name a folder with a checkpoint of this run") from None
        self.number = self.trainer.global_step

    def close(self) -> None:
        self.folder.cleanup()
        if self.session.execution.world > 1:
            dist.barrier()
            worlds.close_groups()


def block_of(recipe: Recipe, letter: str, chunk: int = 128) -> TransformerBlockConfig:
    norm = LayerNormConfig(name=LayerNormType.rms, eps=recipe.norm_eps, bias=False)
    scan = NemotronMamba2Config(
        ssm_state_size=recipe.mamba.state, mamba_num_heads=recipe.mamba.heads, mamba_head_dim=recipe.mamba.head_dim,
        n_groups=recipe.mamba.groups, layer_norm_epsilon=recipe.norm_eps, dtype=DType.float32,
        chunk_size=chunk, time_step_min=1e-30,  # below it a step of the scan is cut off
    )  # fmt: skip
    attention = AttentionConfig(
        n_heads=recipe.heads, n_kv_heads=recipe.kv_groups, head_dim=recipe.head_dim,
        bias="attention" in recipe.biases, rope=RoPEConfig(theta=recipe.rope_theta),
        qk_norm=norm if recipe.qk_norm else None, use_head_qk_norm=True if recipe.qk_norm else None,
    )  # fmt: skip
    return TransformerBlockConfig(
        sequence_mixer=scan if letter == "M" else attention, layer_norm=norm, dropout=recipe.dropout or None,
        feed_forward=FeedForwardConfig(hidden_size=recipe.ffn_hidden, bias="mlp" in recipe.biases),
    )  # fmt: skip


def model_of(recipe: Recipe, frozen: Sequence[str] = ()) -> TransformerConfig:
    letters = list(patterns.parse(recipe.pattern, recipe.depth).letters[::2])
    return TransformerConfig(
        d_model=recipe.hidden, vocab_size=recipe.vocab, n_layers=len(letters),
        block={letter: block_of(recipe, letter) for letter in {*letters}}, block_pattern=letters,
        lm_head=LMHeadConfig(layer_norm=block_of(recipe, "A").layer_norm, bias=False), init_seed=recipe.seed,
        tie_word_embeddings=not recipe.untied_embeddings, freeze_params=list(frozen) or None,
    )  # fmt: skip


def scheduler_of(recipe: Recipe) -> scheduler.Scheduler:
    optim = recipe.optim
    if optim.schedule == "constant":
        return scheduler.ConstantWithWarmup(warmup=optim.warmup)
    if optim.schedule == "WSD":
        return scheduler.WSD(warmup=optim.warmup, decay_fraction=0.2, decay_min_lr=optim.min_lr)
    kind = {"cosine": scheduler.CosWithWarmup, "linear": scheduler.LinearWithWarmup}[optim.schedule]
    return kind(warmup=optim.warmup, alpha_f=optim.min_lr / optim.lr)


def groups_of(recipe: Recipe, rates: Mapping[str, float]) -> list[OptimGroupOverride]:
    """Its groups of parameters: what does not decay, as in its own scripts, and what has a rate of its own."""
    chosen: dict[str, dict[str, float]] = {"embeddings.weight": {"weight_decay": 0.0}}
    for name, rate in rates.items():
        chosen[name] = {**chosen.get(name, {}), "lr": rate * recipe.optim.lr}
    return [OptimGroupOverride(params=[name], opts=opts) for name, opts in chosen.items()]


def train_module_of(session: Session, rates: Mapping[str, float]) -> train_module.TransformerTrainModuleConfig:
    recipe, execution, optim = session.recipe, session.execution, session.recipe.optim
    degrees, again = execution.degrees, execution.recompute or recipe.recompute != "none"
    data = execution.world // degrees.tp // degrees.cp
    kind = DataParallelType.hsdp if execution.replicas > 1 else DataParallelType.fsdp
    replicas = {"num_replicas": execution.replicas} if execution.replicas > 1 else {}
    sharded = execution.fsdp or data == 1  # it wants a config of data parallelism beside tensor parallelism
    dp = train_module.TransformerDataParallelConfig(name=kind if sharded else DataParallelType.ddp, **replicas)
    half = recipe.dtype == "bf16" and execution.precision == "declared"
    return train_module.TransformerTrainModuleConfig(
        rank_microbatch_size=recipe.seq_length, max_sequence_length=recipe.seq_length,
        optim=AdamWConfig(lr=optim.lr, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay,
                          group_overrides=groups_of(recipe, rates)),
        max_grad_norm=optim.clip or math.inf, scheduler=scheduler_of(recipe),
        ac_config=train_module.TransformerActivationCheckpointingConfig() if again else None,
        autocast_precision=DType.bfloat16 if half else None,
        dp_config=dp if execution.world > 1 else None,
        tp_config=train_module.TransformerTensorParallelConfig(degree=degrees.tp) if degrees.tp > 1 else None,
        cp_config=train_module.TransformerContextParallelConfig.ulysses(degrees.cp) if degrees.cp > 1 else None,
    )  # fmt: skip
