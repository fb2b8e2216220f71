"""litgpt 0.5 under test by rankproof: its GPT with LLaMAMLP or LLaMAMoE, pretrained by what `litgpt.pretrain` calls.

    pip install litgpt==0.5.13
    rankproof init --probe litgpt_lane:Stack
"""


import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch
from lightning import Fabric
from litgpt.config import Config
from litgpt.model import GPT, Block, GroupedTopkRouter
from litgpt.pretrain import get_lr, initialize_weights
from litgpt.utils import chunked_cross_entropy, instantiate_torch_optimizer
from torch import Tensor, nn

from contracts.instruments import numerics
from contracts.spec import Abilities, Arrays, Moe, NotOffered, Recipe, Session, Step, Tokens, refuse
from contracts.stacks.kit.adapter import Adapter, Steps
from contracts.stacks.kit.declining import lacks
from contracts.stacks.kit.links import Link, joined, of_each, same


class Stack(Adapter):
    name, version = "litgpt", version("litgpt")
    conventions = MappingProxyType({"first-rate": "step-0"})
    abilities = Abilities(
        has=frozenset((
            "attention", "mlp", "experts", "gqa", "qk-norm", "swiglu", "softmax", "sigmoid", "selection-bias",
            "route-scale", "shared-expert", "tied", "adamw", "cosine", "constant", "float32", "microbatches",
        )),
        lacks=tuple(lacks(feature, kind, reason) for kind, reason, features in (
            ("stack", "a layer is attention and then an MLP or experts", "mamba narrow-scan recurrent unpaired"),
            ("stack", "its norms and its router compute in float32", "float64"),
            ("stack", "its router has no auxiliary loss and drops no token", "balance-loss z-loss capacity"),
            ("stack", "the gate of one expert is 1", "top-1"),
            ("stack", "its MLPs are gated by SiLU", "relu2"),
            ("stack", "it has none", "dsa hyper-connections parallel-ssm prediction-heads muon linear WSD "
             "changing-decay fp16 fp8"),
            ("stack", "a row is one document", "packed"),
            ("stack", "its microbatches are of one size", "uneven-microbatches windows"),
            ("adapter", "its `bias` was not tried", "attention-bias mlp-bias expert-bias router-bias"),
            ("adapter", "not asked yet", "mla recompute compile bf16 own-data checkpoint checkpoint-of-a-recipe "
             "validation dp fsdp replicas tp cp pp ep etp"),
        ) for feature in features.split()),
    )  # fmt: skip
    outside = MappingProxyType({"embedding.weight": "transformer.wte.weight", "norm.weight": "transformer.ln_f.weight",
                                "head.weight": "lm_head.weight"})  # fmt: skip

    def layer(self, number: int) -> str:
        return f"transformer.h.{number // 2}."

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        yield same("norm_1.weight" if letter == "A" else "norm_2.weight", "norm.weight")
        moe, parts = recipe.moe, {"fc_1": "w1", "fc_2": "w3", "proj": "w2"}
        if letter == "A":
            sizes = [recipe.heads * recipe.head_dim, *[recipe.kv_groups * recipe.head_dim] * 2]
            yield joined("attn.qkv.weight", [f"mixer.{name}.weight" for name in ("wq", "wk", "wv")], sizes)
            yield same("attn.proj.weight", "mixer.wo.weight")
            yield from (same(f"attn.norm_{n}.weight", f"mixer.{n}_norm.weight") for n in "qk" if recipe.qk_norm)
        elif moe is None:
            yield from (same(f"mlp.{theirs}.weight", f"mixer.{ours}.weight") for theirs, ours in parts.items())
        else:
            yield same("mlp.gate.weight", "mixer.router.weight")
            if moe.selection_bias:
                yield same("mlp.gate.e_score_correction_bias", "mixer.router.bias")
            for theirs, ours in parts.items():
                yield from of_each(f"mlp.experts.{{}}.{theirs}.weight", f"mixer.experts.{ours}", moe.experts)
                if moe.shared_hidden:
                    yield same(f"mlp.shared_experts.{theirs}.weight", f"mixer.shared.{ours}.weight")

    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        return Block(config_of(recipe, recipe.moe if letter == "E" else None), 0)

    def branch(
        self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        if letter == "E":
            said: dict[str, Tensor] = {}
            gate = getattr(layer.mlp, "gate", None)
            if isinstance(gate, GroupedTopkRouter):  # the softmax router returns its logits only
                gate.register_forward_hook(lambda *told: said.update(experts=told[2][1]))
            return layer.mlp(layer.norm_2(x_BTD)), said
        if (documents_BT != documents_BT[:, :1]).any():
            raise NotOffered("litgpt: a row is one document", "stack")
        cos, sin = (each[: x_BTD.shape[1]].unsqueeze(0) for each in GPT(layer.config).rope_cache())
        return layer.attn(layer.norm_1(x_BTD), cos, sin)

    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        return Pretraining(session, links)


class Pretraining(Steps):
    """The lines of `litgpt.pretrain.main` and `fit` that make a model and take a step; `fit` itself reads a data loader
    whose labels are its next tokens."""

    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        super().__init__(session, links)
        recipe, optim = session.recipe, session.recipe.optim
        self.fabric = Fabric(accelerator="cpu", devices=1)
        torch.manual_seed(recipe.seed)  # fabric.seed_everything, without its line of output
        self.module = GPT(config := config_of(recipe, recipe.moe))
        initialize_weights(self.fabric, self.module, n_layer=config.n_layer, n_embd=config.n_embd)
        if not recipe.untied_embeddings:
            self.module.transformer.wte.weight = self.module.lm_head.weight
        given = {"lr": optim.lr, "weight_decay": optim.weight_decay, "betas": (optim.beta1, optim.beta2)}
        named = {"class_path": "torch.optim.AdamW", "init_args": given}
        self.optimizer = instantiate_torch_optimizer(named, self.module.parameters())

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self.optimizer,)

    def buffers(self) -> Mapping[str, Tensor]:
        return {name: each for name, each in self.module.named_buffers() if name.endswith("e_score_correction_bias")}

    def generators(self) -> Arrays:
        return numerics.arrays({"torch": torch.get_rng_state()})

    def backward(self, batch: Tokens, backward: bool = True) -> tuple[list[Tensor], float]:
        pieces, losses, logits = self.session.execution.microbatches, [], []
        tokens, labels = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
        for input_ids, targets in zip(tokens.chunk(pieces), labels.chunk(pieces), strict=True):
            logits.append(self.module(input_ids))
            losses.append(chunked_cross_entropy(logits[-1], targets))
            if backward:
                self.fabric.backward(losses[-1] / pieces)
        return logits, float(torch.stack(losses).mean())  # its RunningMean over the microbatches of a step

    def forward(self, batch: Tokens, backward: bool) -> tuple[Tensor, Mapping[str, float]]:
        logits, loss = self.backward(batch, backward)
        return torch.cat(logits).detach(), {"lm": loss, "total": loss}

    def step(self, batch: Tokens) -> Step:
        optim, number = self.session.recipe.optim, self.number + 1
        try:
            low = optim.lr if optim.schedule == "constant" else optim.min_lr
            rate = get_lr(self.optimizer.defaults["lr"], self.number, optim.warmup, optim.steps, low)
        except ZeroDivisionError as error:
            raise refuse("optim.warmup", optim.warmup, f"get_lr: {error}", "end the warm-up before the run") from None
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        _, loss = self.backward(batch)
        self.note(number)
        try:  # as fabric.clip_gradients calls it
            norm = self.fabric.strategy.clip_gradients_norm(self.module, self.optimizer, optim.clip or math.inf, 2.0)
        except RuntimeError as error:
            raise refuse("gradients", loss, str(error).partition(". ")[0], "look at the loss of it") from None
        factor = self.factor()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(number=number, losses={"lm": loss, "total": loss}, lr=rate, grad_norm=float(norm),
                    tokens=int((numerics.tensor(batch.labels) != -100).sum()), clip_coef=factor)  # fmt: skip


def config_of(recipe: Recipe, moe: Moe | None) -> Config:
    return Config(
        name="rankproof", block_size=max(recipe.seq_length, 64), n_layer=max(1, recipe.depth // 2),
        n_embd=recipe.hidden, n_head=recipe.heads, n_query_groups=recipe.kv_groups, head_size=recipe.head_dim,
        intermediate_size=recipe.ffn_hidden, padded_vocab_size=recipe.vocab, vocab_size=recipe.vocab,
        norm_class_name="RMSNorm", norm_eps=recipe.norm_eps, norm_qk=recipe.qk_norm, parallel_residual=False,
        rotary_percentage=1.0, rope_base=recipe.rope_theta, bias=False,
        **({"mlp_class_name": "LLaMAMLP"} if moe is None else experts_of(moe)),
    )  # fmt: skip


def experts_of(moe: Moe) -> dict[str, Any]:
    """LLaMAMoE as the config has it; sigmoids come from its router with groups, all of which are chosen."""
    for problem, there in {
        "the shared expert is a multiple of the routed ones wide": moe.shared_hidden % moe.expert_hidden,
        "a selection bias stands beside sigmoids": moe.selection_bias and moe.score == "softmax",
        "the groups of its sigmoid router are of at least two experts": moe.score == "sigmoid" and moe.experts % 2,
        "the gate of one expert is 1": moe.top_k == 1 and moe.score == "softmax",
    }.items():
        if there:
            raise NotOffered(f"litgpt: {problem}", "stack")
    found: dict[str, Any] = {
        "mlp_class_name": "LLaMAMoE", "n_expert": moe.experts, "n_expert_per_token": moe.top_k,
        "moe_intermediate_size": moe.expert_hidden, "n_shared_expert": moe.shared_hidden // moe.expert_hidden or None,
        "routed_scaling_factor": moe.route_scale, "norm_topk_prob": moe.top_k > 1,
    }  # fmt: skip
    if moe.score == "sigmoid":
        found |= {"n_expert_groups": 2, "n_topk_groups": 2, "n_topk_scores_per_group": min(2, moe.experts // 2)}
    return found
