"""Runs of NeMo AutoModel's own recipe of next-token training, for nemo_lane.py."""
# ruff: noqa: E402  (its packages come after what they read when they are imported)

import contextlib
import io
import logging
import math
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets  # noqa: F401  (not first imported where tensors are made on the meta device)
import torch
import torch.distributed as dist
from nemo_checkpoints import UNREADABLE
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from contracts.instruments import numerics, traffic
from contracts.instruments.ranks import gathered
from contracts.spec import Arrays, NotOffered, Recipe, Session, Step, Tokens, refuse
from contracts.stacks.kit import worlds
from contracts.stacks.kit.adapter import Steps
from contracts.stacks.kit.links import Link
from contracts.stacks.kit.runs import packed, whole

logging.disable(logging.WARNING)  # it logs each model that it builds
warnings.simplefilter("ignore")  # and the packages that are missing: Transformer Engine, Apex

from nemo_automodel._transformers import infrastructure
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.components.datasets.utils import _indexed_mask_to_4d_block_causal
from nemo_automodel.components.distributed.config import DDPConfig
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.ling_v2.config import BailingMoeV2Config
from nemo_automodel.components.models.ling_v2.model import BailingMoeV2ForCausalLM
from nemo_automodel.components.models.llama.model import LlamaForCausalLM
from nemo_automodel.components.models.qwen3.model import Qwen3ForCausalLM
from nemo_automodel.components.training import utils as of_steps
from nemo_automodel.recipes.llm import train_ft
from transformers import LlamaConfig, Qwen3Config

BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch",
                        gate_precision="float32", enable_hf_state_dict_adapter=False)  # fmt: skip
CLIP, WRAPPED = of_steps.clip_grad_norm, re.compile(r"^module\.|_checkpoint_wrapped_module\.")


class Training(Steps):
    """What `run_train_validation_loop` does with a batch, one batch at a time."""

    own_rates = own_frozen = True

    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        super().__init__(session, links)
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory())
            if session.execution.world == 1:
                opened.enter_context(worlds.of_one())
            self.recipe_ = train_ft.TrainFinetuneRecipeForNextTokenPrediction(self.config(folder))
            try:
                with without_a_card(session), contextlib.redirect_stdout(io.StringIO()):
                    self.recipe_.setup()
            except AssertionError as error:
                where = traceback.extract_tb(error.__traceback__)[-1]  # an assert without words: its line says it
                raise refuse("recipe", session.recipe.name, f"{where.line} {error}", "let it hold") from None
            except UNREADABLE as error:
                if not session.load:
                    raise
                words = f"{type(error).__name__}: {error}"
                raise refuse("load", session.load, words, "name a checkpoint of this run") from None
            self.opened = opened.pop_all()
        self.recipe_.checkpointer.config.checkpoint_dir = session.save or folder
        (self.module,) = self.recipe_.model_parts
        self.module.train()
        self.recipe_.timestamp = time.perf_counter()
        self.ranks, self.rank = self.recipe_._get_dp_group_size(), self.recipe_._get_dp_rank()
        self.coefficient, self.rate = 1.0, 0.0
        self.own = self.batches()
        if session.batches:
            iter(self.recipe_.dataloader)  # as its loop does before its first step
        self.named = {WRAPPED.sub("", name): each for name, each in super().parameters().items()}

    def config(self, folder: str) -> ConfigNode:
        """The YAML of its run: what it trains by names of its modules, and rates by names of its parameters."""
        session, theirs = self.session, {}
        for link in self.links:
            for chosen in ({*session.frozen}, *({name} for name in session.rates)):
                if {*link.ours} & chosen and not {*link.ours} <= chosen:
                    raise NotOffered(f"NeMo AutoModel: {link.theirs} is one tensor", "stack")
            theirs |= dict.fromkeys(link.ours, link.theirs)
        found = config_of(session, folder)
        if session.frozen:
            paths = sorted({theirs[name].rpartition(".")[0] for name in session.frozen})
            found["freeze_config"] = {"freeze_modules": [{"path": path} for path in paths]}
        found["optimizer"]["param_group_overrides"] = [
            {"pattern": f"^{re.escape(theirs[name])}$", "lr_mult": rate} for name, rate in session.rates.items()
        ]
        return ConfigNode(found)

    def parameters(self) -> Mapping[str, Tensor]:
        return self.named

    def batches(self) -> Iterator[list[dict[str, Tensor]]]:
        """What its loop over epochs takes from its loader."""
        for epoch in self.recipe_.step_scheduler.epochs:
            self.recipe_.step_scheduler.set_epoch(epoch)
            yield from self.recipe_.step_scheduler

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return self.recipe_.optimizer

    def buffers(self) -> Mapping[str, Tensor]:
        found = self.module.named_buffers()
        return {WRAPPED.sub("", name): each for name, each in found if name.endswith("e_score_correction_bias")}

    def generators(self) -> Arrays:
        return numerics.arrays({"torch": torch.get_rng_state()})

    def given(self, batch: Tokens) -> dict[str, Tensor]:
        """A batch as its collater of packed sequences for SDPA has it."""
        given = {"input_ids": numerics.tensor(batch.tokens), "labels": numerics.tensor(batch.labels)}
        if packed(batch) and batch.documents is not None:
            documents_BT = numerics.tensor(batch.documents)
            mask_BHTT = _indexed_mask_to_4d_block_causal(documents_BT + 1)
            given |= {"attention_mask": mask_BHTT, "position_ids": mask_BHTT.sum(-1)[:, 0] - 1}
        return given

    def cut_up(self, batch: Tokens, whole: bool = False) -> list[dict[str, Tensor]]:
        """The rows of this rank in its microbatches, as its loader gives them; `whole` ones where it validates."""
        pieces = 1 if whole else self.session.execution.microbatches
        given, rows = self.given(batch), batch.labels.shape[0]
        if rows % self.ranks or rows // self.ranks < pieces:
            raise NotOffered(f"NeMo AutoModel: {rows} sequences are not cut so", "stack")
        own = {name: each.chunk(self.ranks)[self.rank].tensor_split(pieces) for name, each in given.items()}
        return [dict(zip(own, each, strict=True)) for each in zip(*own.values(), strict=True)]

    def taken(self, batches: list[dict[str, Tensor]], number: int, limit: float) -> dict[str, Any]:
        """The metrics of its recipe after a step; the gradients are noted before they are clipped.

        Its log has the rate of the step after (docs/confirmed/nemo_automodel_logs_the_next_rate.py), so the rate is
        read off its optimizer.
        """

        def clipped(*given: Any, **named: Any) -> Any:
            self.note(number)
            norm = CLIP(*given, **named)
            self.coefficient, self.rate = self.factor(), self.recipe_.optimizer[0].param_groups[0]["lr"]
            return norm

        with patch.object(of_steps, "clip_grad_norm", clipped):
            return self.recipe_._run_train_optim_step(batches, limit).metrics

    def forward(self, batch: Tokens, backward: bool) -> tuple[Tensor, Mapping[str, float]]:
        given = self.given(batch)
        del given["labels"]
        self.module.eval()
        with torch.no_grad():
            logits = whole(self.module(**given).logits)
        told = self.validated([batch])
        self.module.train()
        if backward:
            (optimizer,) = self.recipe_.optimizer
            with patch.object(optimizer, "step"), patch.object(optimizer, "zero_grad"):
                told = self.taken(self.cut_up(batch), 0, math.inf)["loss"]
        return logits, {"lm": told, "total": told}

    def step(self, batch: Tokens) -> Step:
        self.recipe_.step_scheduler.step = self.number
        return self.stepped(self.cut_up(batch))

    def own_step(self) -> Step:
        batches = next(self.own)
        ids = [int(each) for batch in batches for each in batch.pop("dataset_id")]
        with traffic.unrecorded():
            every = gathered(ids) if self.ranks > 1 else (ids,)
        return replace(self.stepped(batches), samples=tuple(each for ids in every for each in ids))

    def stepped(self, batches: list[dict[str, Tensor]]) -> Step:
        told = self.taken(batches, self.number + 1, self.recipe_.max_grad_norm)
        self.loss = told["loss"]
        validation = None
        if self.number + 1 in self.session.validate_at:
            validation = self.validated(self.session.validation)
            self.module.train()
        return Step(
            number=self.number + 1, losses={"lm": told["loss"], "total": told["loss"]}, lr=self.rate,
            tokens=told["num_label_tokens"], grad_norm=float(told["grad_norm"]), clip_coef=self.coefficient,
            validation=validation,
        )  # fmt: skip

    def validated(self, batches: Iterable[Tokens]) -> float:
        rows = [each for batch in batches for each in self.cut_up(batch, whole=True)]
        return self.recipe_._run_validation_epoch(rows).metrics["val_loss"]

    def save(self, folder: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.recipe_.save_checkpoint(self.recipe_.step_scheduler.epoch, self.number - 1, self.loss)

    def load(self, folder: str) -> None:
        """Its setup did, and begins anew where it found nothing."""
        self.number = self.recipe_.step_scheduler.step

    def close(self) -> None:
        self.opened.close()
        if self.session.execution.world > 1:
            dist.barrier()
            worlds.close_groups()


@contextlib.contextmanager
def without_a_card(session: Session) -> Iterator[None]:
    """Its setup asks CUDA for the device and for the peak of memory; its model is built on the CPU instead."""

    def built(cfg: Any, peft: Any, seed: int, distributed_setup: Any, cfg_freeze: Any, **_: Any) -> nn.Module:
        """`build_model`, whose two branches have "cuda" in them."""
        mesh, on_meta = distributed_setup.mesh_context, not isinstance(distributed_setup.strategy_config, DDPConfig)
        with train_ft.ScopedRNG(seed=seed, ranked=True), patch("torch.cuda.current_device", lambda: 0):
            with infrastructure.init_empty_weights() if on_meta else contextlib.nullcontext():
                model = model_of(session.recipe)
            wrapper, pipeline, parallelize, _qat = infrastructure.instantiate_infrastructure(
                distributed_config=distributed_setup.strategy_config, device=torch.device("cpu"), mesh=mesh,
                pipeline_config=distributed_setup.pipeline_config,
                moe_parallel_config=distributed_setup.moe_parallel_config,
                activation_checkpointing=distributed_setup.activation_checkpointing,
            )  # fmt: skip
            model = infrastructure.apply_model_infrastructure(
                model, is_meta_device=on_meta, device=torch.device("cpu"), mesh=mesh, model_wrapper=wrapper,
                autopipeline=pipeline, parallelize_fn=parallelize,
                freeze_config=cfg_freeze.to_dict() if cfg_freeze else None,
            )  # fmt: skip
        getattr(model, "module", model).model.rotary_emb.device = torch.device("cpu")
        return model

    with patch("torch.cuda.reset_peak_memory_stats"), patch.object(train_ft, "build_model", built):
        yield


def model_of(recipe: Recipe) -> nn.Module:
    """Ling with experts, Qwen3 with an MLP and QK norm, Llama without the norm."""
    moe, bias, theta = recipe.moe, "attention" in recipe.biases, float(recipe.rope_theta)
    config: dict[str, Any] = {
        "vocab_size": recipe.vocab, "hidden_size": recipe.hidden, "intermediate_size": recipe.ffn_hidden,
        "num_hidden_layers": max(1, recipe.depth // 2), "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_groups, "head_dim": recipe.head_dim, "rms_norm_eps": recipe.norm_eps,
        "max_position_embeddings": max(recipe.seq_length, 4096), "pad_token_id": None, "eos_token_id": None,
        "dtype": "bfloat16" if recipe.dtype == "bf16" else "float32",
    }  # fmt: skip
    if moe is None:
        kind, of = (Qwen3ForCausalLM, Qwen3Config) if recipe.qk_norm else (LlamaForCausalLM, LlamaConfig)
        rope, tied = {"rope_type": "default", "rope_theta": theta}, not recipe.untied_embeddings
        dense = of(**config, attention_bias=bias, mlp_bias="mlp" in recipe.biases, rope_parameters=rope,
                   tie_word_embeddings=tied, use_cache=False, attn_implementation="sdpa")  # fmt: skip
        return kind(dense, backend=BACKEND)
    ling = BailingMoeV2Config(
        **config, use_qkv_bias=bias, use_bias=bias, rope_theta=theta, use_qk_norm=recipe.qk_norm,
        first_k_dense_replace=0, num_experts=moe.experts, num_experts_per_tok=moe.top_k, n_group=0, topk_group=0,
        moe_intermediate_size=moe.expert_hidden, num_shared_experts=int(moe.shared_hidden > 0),
        routed_scaling_factor=moe.route_scale, score_function=moe.score,
        moe_router_enable_expert_bias=moe.selection_bias,
    )  # fmt: skip
    groups = moe.groups or (0, 0)
    beside = {  # what its MoEConfig has and Ling's configuration does not say
        "n_expert_groups": groups[0], "n_limited_groups": groups[1], "softmax_before_topk": True,
        "gate_bias_update_factor": moe.bias_rate if moe.selection_bias else 0.0, "aux_loss_coeff": moe.aux_loss,
        "shared_expert_inter_dim": moe.shared_hidden, "expert_activation": recipe.activation,
        "shared_expert_activation": recipe.activation, "expert_bias": "experts" in recipe.biases,
        "router_bias": "router" in recipe.biases, "norm_topk_prob": moe.top_k > 1,
    }  # fmt: skip
    return BailingMoeV2ForCausalLM(ling, backend=BACKEND, moe_overrides=beside)


def rows_of(recipe: Recipe) -> list[dict[str, Any]]:
    """The rows of a recipe's text, or 64 of noise, with their numbers."""
    length, vocab = recipe.seq_length, recipe.vocab
    text = torch.randint(vocab, (64 * length + 1,), generator=torch.Generator().manual_seed(7)).tolist()
    if recipe.data.path is not None:
        text = [each % vocab for each in Path(recipe.data.path).read_bytes()]
    ends = range(length, len(text), length)
    return [{"input_ids": text[end - length : end], "labels": text[end - length + 1 : end + 1], "dataset_id": number}
            for number, end in enumerate(ends)]  # fmt: skip


def config_of(session: Session, folder: str) -> dict[str, Any]:
    recipe, execution, optim = session.recipe, session.execution, session.recipe.optim
    degrees = execution.degrees
    sharers = execution.world // (degrees.tp * degrees.cp * degrees.pp)
    rows = recipe.batch.total if session.steps and not session.batches else sharers  # its loader gives the batches
    alone = sharers == execution.world > 1 and not execution.fsdp
    if 1 < sharers < execution.world and not execution.fsdp:
        raise refuse("fsdp", False, "its DDP stands beside no other axis, and its FSDP2 wants shards", "let it be True")
    return {
        "seed": recipe.seed, "model": {"name": recipe.name},
        "dist_env": {"backend": "gloo"},
        "distributed": {
            "strategy": "ddp" if alone else "fsdp2",
            "tp_size": degrees.tp, "cp_size": degrees.cp, "pp_size": degrees.pp, "ep_size": degrees.ep,
            "dp_replicate_size": execution.replicas,
            "activation_checkpointing": execution.recompute or recipe.recompute != "none",
            **({} if alone else {"mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False),
                                 "sequence_parallel": degrees.sp}),
        },
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "clip_grad_norm": {"max_norm": optim.clip or math.inf},
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": optim.lr, "weight_decay": optim.weight_decay,
                      "betas": [optim.beta1, optim.beta2], "eps": 1e-8},
        "lr_scheduler": {
            "lr_decay_style": optim.schedule, "lr_warmup_steps": optim.warmup, "lr_decay_steps": optim.steps,
            "init_lr": 0.0 if optim.warmup else optim.lr, "min_lr": optim.min_lr,
            "wsd_decay_steps": max(1, optim.steps // 5), "lr_wsd_decay_style": "linear",
            **({} if optim.end_weight_decay is None else {
                "start_wd": optim.weight_decay, "end_wd": optim.end_weight_decay, "wd_incr_steps": optim.steps,
                "wd_incr_style": "linear",
            }),
        },
        "step_scheduler": {
            "global_batch_size": rows, "max_steps": 10**6, "num_epochs": 1000, "preemption_signal": None,
            "local_batch_size": max(1, rows // sharers // execution.microbatches),
        },
        "checkpoint": {
            "enabled": bool(session.save or session.load), "checkpoint_dir": session.load or folder,
            "restore_from": "LATEST" if session.load else None, "save_consolidated": False,
            "max_recent_checkpoints": session.keep,
        },
        "dataset": {"_target_": rows_of, "recipe": recipe},
        "dataloader": {"collate_fn": "nemo_automodel.components.datasets.utils.default_collater", "shuffle": True},
    }  # fmt: skip
