"""Facts about Megatron's flags, and the relations between them that its validator enforces.

Each relation was observed on the real validator of Megatron-Core 0.19.2.
"""

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from contracts.spec import Stage


@functools.cache
def table() -> Mapping[str, Any]:
    """The shipped table: source with sha1, flags, removed flags, symbols, observed rules."""
    text = files("contracts.stacks").joinpath("data/megatron_flags.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


@dataclass(frozen=True)
class Asked:
    """The parsed arguments, and what else validation reads. Fields of the arguments are its attributes."""

    args: argparse.Namespace
    env: Mapping[str, str]
    world: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.args, name)

    @property
    def tp(self) -> int:
        return int(self.args.tensor_model_parallel_size)

    @property
    def pp(self) -> int:
        return int(self.args.pipeline_model_parallel_size)

    @property
    def cp(self) -> int:
        return int(self.args.context_parallel_size)

    @property
    def ep(self) -> int:
        return int(self.args.expert_model_parallel_size)

    @property
    def etp(self) -> int:
        return int(self.args.expert_tensor_parallel_size or self.tp)

    @property
    def model_size(self) -> int:
        return self.tp * self.pp * self.cp

    @property
    def pattern(self) -> str | None:
        """The hybrid pattern, also when it was given by its deprecated name."""
        given: list[str | None] = [self.args.hybrid_layer_pattern, self.args.hybrid_override_pattern]
        return next((pattern for pattern in given if pattern is not None), None)

    @property
    def experts(self) -> int:
        """The number of experts; 0 counts as none."""
        return int(self.args.num_experts or 0)


@dataclass(frozen=True)
class Rule:
    """A relation that Megatron was seen to enforce. `refuses` returns the message, or None if the relation holds."""

    stage: Stage
    refuses: Callable[[Asked], str | None]


def _world(a: Asked) -> str | None:
    if a.model_size < 1:
        return f"total_model_size ({a.model_size}) must be positive"
    if a.world % a.model_size:
        return f"world size ({a.world}) is not divisible by total_model_size ({a.model_size})"
    return None


def _patterns(a: Asked) -> str | None:
    """Symbols, mixes, MTP parts and segments of the hybrid pattern."""
    if a.hybrid_layer_pattern and a.hybrid_override_pattern:
        return "--hybrid-override-pattern and --hybrid-layer-pattern cannot both be specified"
    if not a.pattern:
        return None
    main, *heads = a.pattern.split("/")
    newest = table()["hybrid_symbols_by_version"]["0.19.x and main d98e8a64"]
    symbols = set(newest.partition(",")[0].split())
    for part, legal in [(main, symbols | {"|"}), *((head, symbols) for head in heads)]:
        strangers = [letter for letter in part if letter not in legal]
        if strangers:
            return f"{strangers[0]!r} is not a valid layer symbol in {part!r}"
        if "*" in part and set(part) & {"D", "+"}:
            return "Not supported to have both Attention and MLA/DSA in one model"
    if len(set(heads)) > 1:
        return f"All MTP patterns must be identical: {a.pattern}"
    segments = main.count("|") + 1
    if segments > 1 and segments % a.pp:
        return f"the number of hybrid pipeline segments ({segments}) must be divisible by {a.pp} pipeline stages"
    if segments > a.pp == 1:
        return "When interleaved schedule is used, pipeline-model-parallel size should be greater than 1"
    for flag in ("num_virtual_stages_per_pipeline_rank", "account_for_loss_in_pipeline_split"):
        if getattr(a, flag):
            return f"--{flag.replace('_', '-')} should not be used with --hybrid-layer-pattern"
    return None


def _pipeline(a: Asked) -> str | None:
    if a.pattern or not a.num_layers:
        return None
    if (a.num_virtual_stages_per_pipeline_rank or a.num_layers_per_virtual_pipeline_stage) and a.pp == 1:
        return "When interleaved schedule is used, pipeline-model-parallel size should be greater than 1"
    if a.num_layers % a.pp:
        return "Number of layers should be divisible by the pipeline-model-parallel size"
    return None


def _lengths(a: Asked) -> str | None:
    if not a.seq_length:
        return None
    if a.max_position_embeddings is not None and a.max_position_embeddings < a.seq_length:
        return f"max_position_embeddings ({a.max_position_embeddings}) must be at least seq_length ({a.seq_length})"
    if a.cp > 1 and a.seq_length % (2 * a.cp):
        return "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1"
    return None


def _batch(a: Asked) -> str | None:
    if a.global_batch_size is None or a.micro_batch_size is None or _world(a):
        return None
    once = a.micro_batch_size * (a.world // a.model_size)
    if once < 1:
        return f"micro batch size * dp ({once}) must be positive"
    if a.global_batch_size % once:
        return f"global batch size ({a.global_batch_size}) must be divisible by micro batch size * dp ({once})"
    return None


def _precision(a: Asked) -> str | None:
    return "bf16 and fp16 exclude each other" if a.bf16 and a.fp16 else None


def _connections(a: Asked) -> str | None:
    one = a.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    if a.use_torch_fsdp2 or a.use_megatron_fsdp:
        return "FSDP always requires CUDA_DEVICE_MAX_CONNECTIONS larger than one" if one else None
    if (a.tp > 1 or a.cp > 1) and not one and not a.overlap_moe_expert_parallel_comm:
        return "tensor or context parallelism require CUDA_DEVICE_MAX_CONNECTIONS set to 1"
    return None


def _fully_sharded(a: Asked) -> str | None:
    if a.use_megatron_fsdp and a.ckpt_format != "fsdp_dtensor":
        return "Megatron-FSDP requires the fsdp_dtensor checkpointing format"
    if not a.use_torch_fsdp2:
        return None
    against = {
        "pipeline parallelism": a.pp > 1,
        "expert parallelism": a.ep > 1,
        "MCore's distributed optimizer": a.use_distributed_optimizer,
        "gradient accumulation fusion": a.gradient_accumulation_fusion,
        "fp16": a.fp16,
        "an emerging optimizer": "muon" in a.optimizer,
    }
    for what, asked in against.items():
        if asked:
            return f"--use-torch-fsdp2 is not supported with {what}"
    if not a.untie_embeddings_and_output_weights:
        return "--use-torch-fsdp2 requires --untie-embeddings-and-output-weights"
    return None


def _overlap(a: Asked) -> str | None:
    owned = a.use_distributed_optimizer or a.use_megatron_fsdp or a.optimizer == "dist_muon"
    if a.overlap_param_gather and not owned:
        return "--overlap-param-gather only supported with distributed optimizer, megatron fsdp, or dist_muon"
    return None


def _attention(a: Asked) -> str | None:
    if a.multi_latent_attention and a.group_query_attention:
        return "Group query attention is mutually exclusive with multi latent attention"
    heads = a.mtp_num_layers or (a.pattern and "/" in a.pattern)
    if heads and a.position_embedding_type not in ("rope", "none"):
        return f"Multi-Token Prediction (MTP) is not supported with {a.position_embedding_type} position embedding type"
    return None


def _expert_degree(a: Asked) -> str | None:
    if a.ep > 1 and not a.experts:
        return "num_experts must be non None to use expert model parallelism"
    if a.ep > 1 and a.experts % a.ep:
        return "Number of experts should be a multiple of expert model parallel_size"
    return None


def _depth(a: Asked) -> str | None:
    return "the hybrid pattern is empty, so a number of layers of zero is divided by" if a.pattern == "" else None


def _heads(a: Asked) -> str | None:
    if a.num_attention_heads and a.num_attention_heads % a.tp:
        return f"num_attention_heads ({a.num_attention_heads}) must be a multiple of tensor parallel size ({a.tp})"
    groups = a.num_query_groups if a.group_query_attention else None
    if groups and groups % a.tp and a.tp % groups:
        return f"num_query_groups ({groups}) must be a multiple or divisor of tensor parallel size ({a.tp})"
    return None


def _experts(a: Asked) -> str | None:
    if not a.experts:
        return "moe_ffn_hidden_size is set but num_moe_experts is None" if a.moe_ffn_hidden_size else None
    balancing, coefficients = a.moe_router_load_balancing_type, a.moe_aux_loss_coeff
    counts = [len(each) if isinstance(each, list) else 1 for each in (balancing, coefficients)]
    score = a.moe_router_score_function
    broken = {
        "Please use --moe-router-pre-softmax when topk is 1": (
            a.moe_router_topk == 1 and score == "softmax" and not a.moe_router_pre_softmax
        ),
        "Expert bias for aux-loss-free routing only supports sigmoid and sqrtsoftplus score functions": (
            a.moe_router_enable_expert_bias and score not in ("sigmoid", "sqrtsoftplus")
        ),
        "moe_shared_expert_intermediate_size must be positive": a.moe_shared_expert_intermediate_size == 0,
        "moe_shared_expert_overlap only works with alltoall or flex token dispatcher": (
            a.moe_shared_expert_overlap and a.moe_token_dispatcher_type not in ("alltoall", "flex")
        ),
        "moe_aux_loss_coeff must be a list of the same length as moe_router_load_balancing_type": (
            counts[0] > 1 and counts[0] != counts[1]
        ),
        "moe_router_group_topk should be smaller than moe_router_num_groups": (
            (a.moe_router_group_topk or 0) > (a.moe_router_num_groups or a.moe_router_group_topk or 0)
        ),
        "Bias in Moe is only supported when ETP==1": a.add_bias_linear and a.etp > 1,
    }
    return next((words for words, found in broken.items() if found), None)


RULES: Sequence[Rule] = (
    *(Rule("validate", check) for check in (_world, _patterns, _pipeline, _lengths, _batch, _precision)),
    *(Rule("validate", check) for check in (_fully_sharded, _connections, _overlap, _attention, _expert_degree)),
    *(Rule("config", check) for check in (_depth, _heads, _experts)),
)
