"""OLMo-core 3.0 under test by rankproof: its Transformer and TransformerTrainModule, attached to its Trainer.

    pip install ai2-olmo-core==3.0.0
    rankproof init --probe olmo_lane:Stack
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contracts.instruments import numerics, traffic
from contracts.spec.abilities import Abilities
from contracts.spec.array import Arrays
from contracts.spec.errors import NotOffered, refuse
from contracts.spec.recipe import Recipe
from contracts.spec.training import Session, Step, Tokens
from contracts.stacks.kit.adapter import Adapter, Steps
from contracts.stacks.kit.declining import lacks
from contracts.stacks.kit.links import Link, same

logging.disable(logging.WARNING)  # it logs each model that it builds
os.environ.setdefault("OLMO_SHARED_FS", "1")  # its ranks save into one folder

from olmo_core.data.data_loader import DataLoaderBase  # noqa: E402  (after what it reads when it is imported)
from olmo_core.distributed import parallel  # noqa: E402
from olmo_core.distributed.parallel import DataParallelType  # noqa: E402
from olmo_core.exceptions import OLMoConfigurationError  # noqa: E402
from olmo_core.nn.attention import AttentionConfig  # noqa: E402
from olmo_core.nn.feed_forward import FeedForwardConfig  # noqa: E402
from olmo_core.nn.layer_norm import LayerNormConfig, LayerNormType  # noqa: E402
from olmo_core.nn.lm_head import LMHeadConfig  # noqa: E402
from olmo_core.nn.rope import RoPEConfig  # noqa: E402
from olmo_core.nn.transformer import TransformerBlockConfig, TransformerConfig  # noqa: E402
from olmo_core.optim import (  # noqa: E402
    AdamWConfig,
    ConstantWithWarmup,
    CosWithWarmup,
    LinearWithWarmup,
    OptimGroupOverride,
    Scheduler,
)  # fmt: skip
from olmo_core.train import Duration, TrainerConfig  # noqa: E402
from olmo_core.train.callbacks import Callback  # noqa: E402
from olmo_core.train.train_module import (  # noqa: E402
    TransformerActivationCheckpointingConfig,
    TransformerDataParallelConfig,
    TransformerTensorParallelConfig,
    TransformerTrainModuleConfig,
)  # fmt: skip

SPARED = "embeddings.weight"  # from weight decay, as in OLMo-core's own training scripts


class Stack(Adapter):
    name, version = "OLMo-core", version("ai2-olmo-core")
    conventions = MappingProxyType({"undecayed": "embeddings"})
    abilities = Abilities(
        has=frozenset((
            "attention", "mlp", "gqa", "qk-norm", "swiglu", "tied", "float32", "recompute", "adamw", "cosine", "linear",
            "constant", "microbatches", "checkpoint", "dp", "fsdp", "replicas", "tp", "sp", "uneven-vocab",
        )),
        lacks=tuple(lacks(feature, kind, reason) for kind, reason, features in (
            ("stack", "its norms and rotations compute in float32", "float64"),
            ("stack", "a layer is attention and then an MLP or experts", "mamba narrow-scan recurrent unpaired"),
            ("stack", "its MLPs are gated by SiLU", "relu2"),
            ("stack", "it has none", "mla dsa hyper-connections parallel-ssm prediction-heads"),
            ("adapter", "its `bias` was not tried", "attention-bias mlp-bias expert-bias router-bias"),
            ("stack", "its microbatches have one size", "uneven-microbatches windows"),
            ("stack", "a checkpoint is loaded whatever the model was", "checkpoint-of-a-recipe"),
            ("stack", "its tensor parallelism cuts sequences too", "tp-without-sp"),
            ("stack", "FP16 has no loss scale in it", "fp16"),
            ("device", "its experts are Triton kernels", "experts softmax sigmoid top-1 selection-bias shared-expert "
             "route-scale balance-loss z-loss capacity ep ep-without-fsdp ep-with-etp own-axis borrowed"),
            ("device", "documents are masked by its flash backends", "packed"),
            ("device", "it compiles on CUDA only", "compile compiled-blocks"),
            ("device", "ring and Ulysses attention are its flash backends'", "cp"),
            ("adapter", "not asked yet", "muon WSD bf16 fp8 own-data validation pp interleaved etp "
             "etp-without-ep uneven-kv"),
        ) for feature in features.split()),
    )  # fmt: skip
    outside = MappingProxyType({"embedding.weight": "embeddings.weight", "norm.weight": "lm_head.norm.weight",
                                "head.weight": "lm_head.w_out.weight"})  # fmt: skip

    def layer(self, number: int) -> str:
        return f"blocks.{number // 2}."

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        if letter == "E":
            yield same("feed_forward_norm.weight", "norm.weight")
            yield from (same(f"feed_forward.{name}.weight", f"mixer.{name}.weight") for name in ("w1", "w2", "w3"))
            return
        yield same("attention_norm.weight", "norm.weight")
        for theirs, ours in {"w_q": "wq", "w_k": "wk", "w_v": "wv", "w_out": "wo"}.items():
            yield same(f"attention.{theirs}.weight", f"mixer.{ours}.weight")
        for name in ("q_norm", "k_norm") if recipe.qk_norm else ():
            yield same(f"attention.{name}.weight", f"mixer.{name}.weight")

    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        return block_of(recipe).build(d_model=recipe.hidden, block_idx=0, n_layers=1,
                                      init_device=str(torch.get_default_device()))  # fmt: skip

    def branch(self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor) -> Tensor:
        if letter == "E":
            return layer.feed_forward(layer.feed_forward_norm(x_BTD))
        if (documents_BT != documents_BT[:, :1]).any():
            raise NotOffered("OLMo-core: packed: documents are masked by its flash backends", "device")
        return layer.attention(layer.attention_norm(x_BTD))

    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        with torch.device("cpu"):
            return Training(session, links)


class Batches(DataLoaderBase):
    """The loader that its Trainer asks for sizes and state; the session hands the batches over."""

    total_batches = None

    def state_dict(self) -> dict[str, Any]:
        return {"batches_processed": self.batches_processed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches_processed = state_dict["batches_processed"]

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None: ...

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def get_mock_batch(self) -> dict[str, Any]:
        return {}


class Read(Callback):
    """The metrics of the latest step, as its loggers get them: reduced, on rank 0."""

    metrics: dict[str, float]

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        self.metrics = metrics


class Training(Steps):
    """What `Trainer._fit_epoch` does with a batch, one batch at a time."""

    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        super().__init__(session, links)
        if session.keep is not None or session.durable is not None:
            raise NotOffered("OLMo-core: which checkpoints are kept is not asked yet", "adapter")
        recipe, self.folder = session.recipe, tempfile.TemporaryDirectory()
        execution = session.execution
        self.ranks = execution.world // execution.degrees.tp
        self.rank = dist.get_rank() // execution.degrees.tp if execution.world > 1 else 0
        parallel._WORLD_MESH = None  # a process may make one mesh of ranks, and is asked many runs here
        model = model_of(recipe).build(init_device="cpu" if execution.world == 1 else "meta")
        self.module_ = train_module_of(session).build(model, device=torch.device("cpu"))
        self.module = self.module_.model
        loader = Batches(
            work_dir=self.folder.name, global_batch_size=recipe.batch.total * recipe.seq_length,
            dp_world_size=self.ranks, dp_rank=self.rank,
        )  # fmt: skip
        self.read = Read()
        self.trainer = TrainerConfig(
            save_folder=session.save or self.folder.name, work_dir=self.folder.name, device="cpu", save_overwrite=True,
            max_duration=Duration.steps(recipe.optim.steps), async_bookkeeping=False, callbacks={"read": self.read},
        ).build(self.module_, loader)  # fmt: skip

    def parameters(self) -> Mapping[str, Tensor]:
        wrapped = "_checkpoint_wrapped_module."  # in the names of a block that is recomputed
        return {name.replace(wrapped, ""): each for name, each in super().parameters().items()}

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
                dist.broadcast_object_list(found)
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
        self.trainer.global_step += 1
        self.module_.train_batch(self.mine(batch))
        self.note(self.trainer.global_step)
        self.module_.optim_step()
        factor, told = self.factor(), self.told()
        self.module_.zero_grads()
        loss = told["train/CE loss"]
        return Step(
            number=self.trainer.global_step, losses={"lm": loss, "total": loss}, lr=told["optim/LR (group 0)"],
            tokens=int((numerics.tensor(batch.labels) != -100).sum()), grad_norm=told["optim/total grad norm"],
            clip_coef=factor,
        )  # fmt: skip

    def save(self, folder: str) -> None:
        self.trainer.save_checkpoint()

    def load(self, folder: str) -> None:
        try:
            self.trainer.load_checkpoint(folder, load_trainer_state=True, load_optim_state=True)
        except (FileNotFoundError, OLMoConfigurationError, RuntimeError, ValueError) as error:
            raise refuse("load", folder, str(error), "name a folder with a checkpoint of this run") from None
        self.number = self.trainer.global_step

    def close(self) -> None:
        self.folder.cleanup()


def norm_of(recipe: Recipe) -> LayerNormConfig:
    return LayerNormConfig(name=LayerNormType.rms, eps=recipe.norm_eps, bias=False)


def block_of(recipe: Recipe) -> TransformerBlockConfig:
    return TransformerBlockConfig(
        sequence_mixer=AttentionConfig(
            n_heads=recipe.heads, n_kv_heads=recipe.kv_groups, head_dim=recipe.head_dim, bias=False,
            rope=RoPEConfig(theta=recipe.rope_theta), qk_norm=norm_of(recipe) if recipe.qk_norm else None,
            use_head_qk_norm=True if recipe.qk_norm else None,
        ),
        feed_forward=FeedForwardConfig(hidden_size=recipe.ffn_hidden, bias=False), layer_norm=norm_of(recipe),
    )  # fmt: skip


def model_of(recipe: Recipe) -> TransformerConfig:
    return TransformerConfig(
        d_model=recipe.hidden, vocab_size=recipe.vocab, n_layers=recipe.depth // 2, block=block_of(recipe),
        lm_head=LMHeadConfig(layer_norm=norm_of(recipe), bias=False), init_seed=recipe.seed,
        tie_word_embeddings=not recipe.untied_embeddings,
    )  # fmt: skip


def scheduler_of(recipe: Recipe) -> Scheduler:
    optim = recipe.optim
    if optim.schedule == "constant":
        return ConstantWithWarmup(warmup=optim.warmup)
    kind = {"cosine": CosWithWarmup, "linear": LinearWithWarmup}.get(optim.schedule)
    if kind is None:
        raise NotOffered(f"OLMo-core: {optim.schedule}: not asked yet", "adapter")
    return kind(warmup=optim.warmup, alpha_f=optim.min_lr / optim.lr)


def train_module_of(session: Session) -> TransformerTrainModuleConfig:
    recipe, execution, optim = session.recipe, session.execution, session.recipe.optim
    spared = [OptimGroupOverride(params=[SPARED], opts={"weight_decay": 0.0})]
    again = execution.recompute or recipe.recompute != "none"
    tp, data = execution.degrees.tp, execution.world // execution.degrees.tp
    kind = DataParallelType.hsdp if execution.replicas > 1 else DataParallelType.fsdp
    replicas = {"num_replicas": execution.replicas} if execution.replicas > 1 else {}
    sharded = execution.fsdp or data == 1  # it wants a config of data parallelism beside tensor parallelism
    dp = TransformerDataParallelConfig(name=kind if sharded else DataParallelType.ddp, **replicas)
    return TransformerTrainModuleConfig(
        rank_microbatch_size=recipe.seq_length, max_sequence_length=recipe.seq_length,
        optim=AdamWConfig(lr=optim.lr, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay,
                          group_overrides=spared),
        max_grad_norm=optim.clip or math.inf, scheduler=scheduler_of(recipe),
        ac_config=TransformerActivationCheckpointingConfig() if again else None,
        dp_config=dp if execution.world > 1 else None,
        tp_config=TransformerTensorParallelConfig(degree=tp) if tp > 1 else None,
    )  # fmt: skip
