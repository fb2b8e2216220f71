"""Recipe and lane → the argv of Megatron-LM's own launcher, at the version it was written for.

Each feature owns one function and adds its flags nowhere else, so switching one on or off moves nothing but its own.
Settings that the launcher cannot express are refused here, before a node is asked for.
"""

from collections.abc import Callable

from contracts.spec import Degrees, Lane, Optim, Pattern, Recipe, Refusals, needs
from contracts.spec import pattern as patterns

MEGATRON = ("megatron-core", "0.19.2")
NATIVE_SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")

Words = tuple[str, ...]


def write(recipe: Recipe, lane: Lane, degrees: Degrees, dp: int, pattern: Pattern) -> Words:
    """The argv for a recipe whose lane was not refused."""
    every: tuple[Callable[[], Words], ...] = (
        lambda: _model(recipe),
        lambda: _blocks(recipe, lane, degrees, pattern),
        lambda: _mamba(recipe),
        lambda: _moe(recipe),
        lambda: _attention(recipe),
        lambda: _mtp(recipe),
        lambda: _precision(recipe),
        lambda: _recompute(recipe),
        lambda: _parallel(recipe, degrees, dp),
        lambda: _optim(recipe),
        lambda: _data(recipe),
        lambda: _checkpoint(recipe),
    )
    return tuple(word for part in every for word in part())


def _model(recipe: Recipe) -> Words:
    words = (
        *_flag("--hidden-size", recipe.hidden),
        *_flag("--ffn-hidden-size", recipe.ffn_hidden),
        *_flag("--num-attention-heads", recipe.heads),
        *_flag("--seq-length", recipe.seq_length),
        *_flag("--max-position-embeddings", recipe.seq_length),
        *_flag("--position-embedding-type", "rope"),
        *_flag("--rotary-base", recipe.rope_theta),
        *_flag("--normalization", "RMSNorm"),
        *_flag("--norm-epsilon", recipe.norm_eps),
        "--squared-relu" if recipe.activation == "relu2" else "--swiglu",
        *_biases(recipe),
        # Megatron drops 10 % if nothing is said. A recipe has no dropout of attention weights.
        *_flag("--attention-dropout", 0.0),
        *_flag("--hidden-dropout", recipe.dropout),
    )
    if recipe.untied_embeddings:
        words += ("--untie-embeddings-and-output-weights",)
    return words + (("--qk-layernorm",) if recipe.qk_norm else ())


def _biases(recipe: Recipe) -> Words:
    """On without a flag. Fused activations know no squared relu, and grouped experts no fused addition of biases."""
    given = {*needs.bias_places(recipe)} & {*recipe.biases}
    if not given:
        return ("--disable-bias-linear",)
    words: Words = ("--no-bias-gelu-fusion",) if recipe.activation == "relu2" else ()
    return (*words, "--no-bias-dropout-fusion") if "experts" in given else words


def _blocks(recipe: Recipe, lane: Lane, degrees: Degrees, pattern: Pattern) -> Words:
    # Stages are written out: a pattern without cuts under PP is deprecated in Megatron and cut at model build.
    cut = patterns.parse(patterns.CUT.join(patterns.stages(pattern, degrees.pp)), pattern.depth)
    everywhere = recipe.dsa is not None and len(recipe.dsa.a_ranks) == len(patterns.layers_of(pattern, "A").numbers)
    hybrid = patterns.translate(
        cut,
        moe=recipe.moe is not None,
        dsa=everywhere and lane.mode == "nemo_native",
        mtp_depth=recipe.mtp.depth if recipe.mtp else 0,
    )
    spec = NATIVE_SPEC if lane.mode == "nemo_native" else recipe.author_spec
    return ("--hybrid-layer-pattern", hybrid.text, "--spec", *spec)


def _mamba(recipe: Recipe) -> Words:
    if not {"M", "R"} & recipe.mixers:
        return ()
    return (
        *_flag("--mamba-num-heads", recipe.mamba.heads),
        *_flag("--mamba-head-dim", recipe.mamba.head_dim),
        *_flag("--mamba-state-dim", recipe.mamba.state),
        *_flag("--mamba-num-groups", recipe.mamba.groups),
    )


def _moe(recipe: Recipe) -> Words:
    moe = recipe.moe
    if moe is None:
        return ()
    words = (
        *_flag("--num-experts", moe.experts),
        *_flag("--moe-router-topk", moe.top_k),
        *_flag("--moe-ffn-hidden-size", moe.expert_hidden),
        *_flag("--moe-router-score-function", moe.score),
        *_flag("--moe-router-dtype", "fp32"),
        *_flag("--moe-token-dispatcher-type", "alltoall"),
        "--moe-grouped-gemm",
        # By sequence, so that the loss does not depend on how a batch is cut into microbatches and ranks.
        *_flag("--moe-router-load-balancing-type", "seq_aux_loss" if moe.aux_loss else "none"),
    )
    if moe.aux_loss:
        words += _flag("--moe-aux-loss-coeff", moe.aux_loss)
    if moe.z_loss:
        words += _flag("--moe-z-loss-coeff", moe.z_loss)
    if moe.shared_hidden:
        words += _flag("--moe-shared-expert-intermediate-size", moe.shared_hidden)
    if moe.selection_bias:
        words += ("--moe-router-enable-expert-bias", *_flag("--moe-router-bias-update-rate", moe.bias_rate))
    if moe.groups is not None:
        words += _flag("--moe-router-num-groups", moe.groups[0])
        words += _flag("--moe-router-group-topk", moe.groups[1])
    if moe.top_k == 1 and moe.score == "softmax":  # over the one chosen expert the softmax is 1: Megatron refuses that
        words += ("--moe-router-pre-softmax",)
    if moe.route_scale != 1.0:
        words += _flag("--moe-router-topk-scaling-factor", moe.route_scale)
    if moe.capacity_factor is not None:
        # Megatron drops the smallest gates by itself; by position a later token displaces none before it.
        words += (
            *_flag("--moe-expert-capacity-factor", moe.capacity_factor),
            *_flag("--moe-token-drop-policy", moe.drop_policy),
        )
    return words


def _attention(recipe: Recipe) -> Words:
    """GQA, or MLA in its place (Megatron refuses both), and the sparse indexer."""
    if recipe.mla is None:
        return ("--group-query-attention", *_flag("--num-query-groups", recipe.kv_groups))
    words = (
        "--multi-latent-attention",
        *_flag("--q-lora-rank", recipe.mla.q_lora),
        *_flag("--kv-lora-rank", recipe.mla.kv_lora),
        *_flag("--qk-head-dim", recipe.mla.qk_head),
        *_flag("--qk-pos-emb-head-dim", recipe.mla.qk_rope),
        *_flag("--v-head-dim", recipe.mla.v_head),
    )
    if recipe.dsa is not None:
        words += (
            *_flag("--dsa-indexer-n-heads", recipe.dsa.index_heads),
            *_flag("--dsa-indexer-head-dim", recipe.dsa.index_head_dim),
            *_flag("--dsa-indexer-topk", recipe.dsa.top_k),
            "--no-rope-fusion",  # the indexer has no fused rotary kernel
        )
    return words


def _mtp(recipe: Recipe) -> Words:
    # The depth is the number of head patterns behind `/`; Megatron overwrites --mtp-num-layers with it.
    return () if recipe.mtp is None else _flag("--mtp-loss-scaling-factor", recipe.mtp.loss_weight)


def _precision(recipe: Recipe) -> Words:
    words: Words = () if recipe.dtype == "fp32" else (f"--{recipe.dtype}",)
    if recipe.fp8 is not None:
        words += (*_flag("--fp8-format", recipe.fp8.format), *_flag("--fp8-recipe", recipe.fp8.scaling))
    return words


def _recompute(recipe: Recipe) -> Words:
    if recipe.recompute == "none":
        return ()
    words = _flag("--recompute-granularity", recipe.recompute)
    return (*words, *_flag("--recompute-method", "uniform"), *_flag("--recompute-num-layers", 1))


def _parallel(recipe: Recipe, degrees: Degrees, dp: int) -> Words:
    words = _flag("--tensor-model-parallel-size", degrees.tp)
    if degrees.sp:
        words += ("--sequence-parallel",)
    words += _flag("--pipeline-model-parallel-size", degrees.pp)
    if degrees.cp > 1:
        words += _flag("--context-parallel-size", degrees.cp)
    if recipe.moe is not None:  # with E blocks in the pattern, or the lane is refused
        words += _flag("--expert-model-parallel-size", degrees.ep)
        words += _flag("--expert-tensor-parallel-size", degrees.expert_tp)
    return words + (("--use-distributed-optimizer",) if dp > 1 else ())


def _optim(recipe: Recipe) -> Words:
    optim = recipe.optim
    return (
        *_flag("--micro-batch-size", recipe.batch.micro),
        *_flag("--global-batch-size", recipe.batch.total),
        *_flag("--train-iters", optim.steps),
        *_flag("--lr", optim.lr),
        *_flag("--min-lr", optim.min_lr),
        *_flag("--lr-decay-style", optim.schedule),
        *_flag("--lr-warmup-iters", optim.warmup),
        *_flag("--weight-decay", optim.weight_decay),
        *_changing_decay(optim),
        *_flag("--adam-beta1", optim.beta1),
        *_flag("--adam-beta2", optim.beta2),
        *_flag("--clip-grad", optim.clip),
        *_flag("--seed", recipe.seed),
    )


def _changing_decay(optim: Optim) -> Words:
    if optim.end_weight_decay is None:
        return ()
    return (
        *_flag("--start-weight-decay", optim.weight_decay),
        *_flag("--end-weight-decay", optim.end_weight_decay),
        "--weight-decay-incr-style",
        "linear",
    )


def _data(recipe: Recipe) -> Words:
    source: Words = ("--mock-data",) if recipe.data.path is None else ("--data-path", recipe.data.path)
    return (*source, *_flag("--tokenizer-type", recipe.data.tokenizer), *_flag("--vocab-size", recipe.vocab))


def _checkpoint(recipe: Recipe) -> Words:
    checkpoint = recipe.checkpoint
    words: Words = ()
    if checkpoint.save is not None:
        words += ("--save", checkpoint.save, *_flag("--save-interval", checkpoint.interval))
    if checkpoint.load is not None:
        words += ("--load", checkpoint.load)
    return words + (_flag("--ckpt-format", "torch_dist") if words else ())


def refuse_what_it_cannot_express(
    recipe: Recipe, lane: Lane, degrees: Degrees, pattern: Pattern, found: Refusals
) -> None:
    """Record every feature of the lane that Megatron-LM's flags have no words for."""
    native = lane.mode == "nemo_native"
    author = "run it as author_dp, whose layer spec carries it"
    some_sparse = recipe.dsa is not None and len(recipe.dsa.a_ranks) < len(patterns.layers_of(pattern, "A").numbers)
    _refuse_biases(recipe, degrees, found)
    for name, what in (("mhc", "hyper-connections"), ("parallel_ssm", "state-space branch beside attention")):
        if native and getattr(recipe, name) is not None:
            found.add(name, "on", f"{MEGATRON[0]} {MEGATRON[1]} has no {what}", author)
    if native and some_sparse:
        found.add("dsa", "on some A-ranks", f"{MEGATRON[0]} refuses a mix of * and D", author)
    if lane.compile != "none":
        found.add("compile", lane.compile, "is our trainer's policy, not Megatron-LM's", "use the fsdp2 regime")
    if recipe.optim.schedule == "WSD":
        problem = "needs the length of its last phase, which a recipe does not say and Megatron-LM does not guess"
        found.add("optim.schedule", "WSD", problem, "use cosine, linear or constant, or the fsdp2 regime")
    end = recipe.optim.end_weight_decay
    if end is not None and end < recipe.optim.weight_decay:
        problem = f"is below optim.weight_decay ({recipe.optim.weight_decay:g}), and {MEGATRON[0]}'s decay only rises"
        found.add("optim.end_weight_decay", end, problem, "give a larger one, or use the fsdp2 regime")
    if recipe.optim.rule == "muon":
        problem = f"is our trainer's rule; {MEGATRON[0]} {MEGATRON[1]} has one of its own, with other constants"
        found.add("optim.rule", "muon", problem, "use adamw, or the fsdp2 regime")
    said = {
        "data.path": recipe.data.path,
        "data.tokenizer": recipe.data.tokenizer,
        "checkpoint.save": recipe.checkpoint.save,
        "checkpoint.load": recipe.checkpoint.load,
    }
    for field, text in said.items():
        if text is not None and (not text or text.startswith("-")):
            found.add(field, text, "is empty or begins with -, which the parser takes for a flag", "write ./ before it")


def _refuse_biases(recipe: Recipe, degrees: Degrees, found: Refusals) -> None:
    places = needs.bias_places(recipe)
    given = {*places} & {*recipe.biases}
    shared = recipe.moe is not None and bool(recipe.moe.shared_hidden)
    for fits, problem, remedy in (
        (not given or (given == {*places} and recipe.mla is None),
         f"are of all linear layers or of none: {', '.join(places)}", "name all of these, and turn mla off"),
        ("experts" not in given or not shared, "are not of a shared expert", "set moe.shared_hidden to 0"),
        ("experts" not in given or degrees.expert_tp == 1, f"want etp 1 (it is {degrees.expert_tp})", "set etp to 1"),
    ):  # fmt: skip
        found.unless(
            fits, "biases", recipe.biases, f"{problem}, in {MEGATRON[0]}", f"{remedy}, or use the fsdp2 regime"
        )


def _flag(name: str, value: object) -> Words:
    return (name, str(value))
