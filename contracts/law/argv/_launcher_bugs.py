"""A small launcher with Megatron-LM's flags, correct wherever the checks look; the broken launchers derive from it.

It knows the names, types and rules of the flags that the checks use, and nothing about a model.
"""

import argparse
from collections.abc import Callable, Mapping

from contracts.spec import Reading, refuse
from contracts.stacks.reference.launch.megatron_flags import MEGATRON
from contracts.stacks.reference.stack import Reference

TYPES: Mapping[type, str] = {
    int: "hidden-size ffn-hidden-size num-attention-heads num-query-groups seq-length max-position-embeddings "
    "rotary-base num-layers num-experts moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size "
    "mamba-num-heads mamba-head-dim mamba-state-dim mamba-num-groups tensor-model-parallel-size "
    "pipeline-model-parallel-size context-parallel-size expert-model-parallel-size expert-tensor-parallel-size "
    "micro-batch-size global-batch-size train-iters lr-warmup-iters seed vocab-size q-lora-rank kv-lora-rank "
    "qk-head-dim qk-pos-emb-head-dim v-head-dim mtp-num-layers dsa-indexer-n-heads dsa-indexer-head-dim "
    "dsa-indexer-topk save-interval recompute-num-layers",
    float: "norm-epsilon attention-dropout hidden-dropout moe-aux-loss-coeff moe-z-loss-coeff lr min-lr weight-decay "
    "adam-beta1 adam-beta2 clip-grad mtp-loss-scaling-factor moe-router-bias-update-rate "
    "moe-router-topk-scaling-factor moe-expert-capacity-factor start-weight-decay end-weight-decay",
    str: "position-embedding-type normalization hybrid-layer-pattern moe-router-score-function moe-router-dtype "
    "moe-token-dispatcher-type moe-router-load-balancing-type lr-decay-style tokenizer-type fp8-format fp8-recipe "
    "save load ckpt-format moe-token-drop-policy recompute-granularity recompute-method weight-decay-incr-style",
    bool: "squared-relu swiglu disable-bias-linear no-bias-gelu-fusion no-bias-dropout-fusion "
    "untie-embeddings-and-output-weights qk-layernorm moe-grouped-gemm "
    "group-query-attention bf16 fp16 sequence-parallel use-distributed-optimizer mock-data multi-latent-attention "
    "no-rope-fusion moe-router-enable-expert-bias",
    list: "spec data-path",
}
Found = argparse.Namespace
Rule = Callable[[tuple[str, ...], Found, int], bool]


def _stages(found: Found) -> list[str]:
    return (found.hybrid_layer_pattern or "").partition("/")[0].split("|")


def _layers(found: Found) -> str:
    return "".join(_stages(found))


def _repeats(argv: tuple[str, ...]) -> bool:
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    return len(set(flags)) != len(flags)


RULES: Mapping[str, Rule] = {  # subject of the refusal → whether the argv breaks the rule
    "a flag given twice, such as tensor-model-parallel-size": lambda argv, _, __: _repeats(argv),
    "num-query-groups without group-query-attention": lambda _, f, __: (
        f.num_query_groups is not None and (not f.group_query_attention or f.multi_latent_attention)
    ),
    "sequence-parallel at tp 1": lambda _, f, __: f.sequence_parallel and (f.tensor_model_parallel_size or 1) == 1,
    "num-layers against the pattern": lambda _, f, __: f.num_layers not in (None, len(_layers(f))),
    "mtp-num-layers against the pattern": lambda _, f, __: (
        f.mtp_num_layers not in (None, f.hybrid_layer_pattern.count("/"))
    ),
    "topk above num-experts": lambda _, f, __: f.num_experts is not None and f.moe_router_topk > f.num_experts,
    "num-experts missing for an E": lambda _, f, __: "E" in _layers(f) and f.num_experts is None,
    "num-experts without an E": lambda _, f, __: "E" not in _layers(f) and f.num_experts is not None,
    "expert parallelism beyond the world": lambda _, f, world: (f.expert_model_parallel_size or 1) > world,
    "bf16 and fp16": lambda _, f, __: f.bf16 and f.fp16,
    "mamba-num-heads over tp": lambda _, f, __: (
        f.mamba_num_heads is not None and f.mamba_num_heads % (f.tensor_model_parallel_size or 1) != 0
    ),
    "an empty stage in the pattern": lambda _, f, __: not all(_stages(f)),
}


class Launcher(Reference):
    """Reads an argv: refuses what it does not know and what breaks a rule. `waived` rules are not looked at, and
    with `lenient` the broken ones are reported as dropped flags instead of refused."""

    offers = Reference.offers | {"read_argv"}
    waived: tuple[str, ...] = ()
    lenient = False

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        version = MEGATRON[1]
        try:
            found = _parser().parse_args(list(argv))
        except ValueError as error:
            return Reading(stage="parse", message=str(error), version=version)
        broken = [about for about, rule in RULES.items() if about not in self.waived and rule(argv, found, world)]
        if self.lenient:
            return Reading(stage="accepted", dropped=dict.fromkeys(broken, "changed nothing"), version=version)
        if broken:
            return Reading(stage="validate", message="; ".join(broken), version=version)
        return Reading(stage="accepted", version=version)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # it raises, where argparse exits
        raise refuse("argv", self.prog, message, "see the launcher's own help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=MEGATRON[0], allow_abbrev=False, add_help=False)
    for kind, names in TYPES.items():
        for name in names.split():
            if kind is bool:
                parser.add_argument(f"--{name}", action="store_true")
            elif kind is list:
                parser.add_argument(f"--{name}", nargs="*")
            else:
                parser.add_argument(f"--{name}", type=kind)
    return parser
