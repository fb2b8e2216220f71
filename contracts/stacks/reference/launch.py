"""Recipe and lane → launch. Two launchers: Megatron-LM's own for the `megatron` regime, our trainer for `fsdp2`.

`launch` reads in order: settle the recipe and the degrees, refuse what the lane cannot run, write the arguments, write
the environment. Each feature owns one function and adds its flags nowhere else, so switching one on or off moves
nothing but its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from contracts.spec import pattern as patterns
from contracts.spec.errors import Refusals, refuse
from contracts.spec.launch import RECORDED_PREFIXES, Lane, Launch, Regime
from contracts.spec.pattern import LayerNumbers, Pattern
from contracts.spec.recipe import Mode, Recipe, refusals_on
from contracts.spec.topology import NVLINK_DOMAIN, Degrees, Layout, grids
from contracts.stacks.reference import arguments, overrides

MEGATRON = ("megatron-core", "0.19.2")
SCRIPTS = {"megatron": ("pretrain_hybrid.py",), "fsdp2": ("-m", "contracts.stacks.reference.train")}
NATIVE_SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
LAYOUTS: Mapping[Regime, Layout] = {"megatron": "borrowed", "fsdp2": "own-axis"}
TP_OF_MODE: Mapping[Mode, int] = {"nemo_native": 2, "author_dp": 1}

Words = tuple[str, ...]


def launch(recipe: Recipe, lane: Lane) -> Launch:
    """The command and environment that start `recipe` on `lane`.

    Raises:
        Refused: an override without a field, a mode the recipe does not have, degrees that contradict the mode or do
            not divide, a feature the launcher cannot express, an inherited environment that contradicts the lane.
    """
    recipe = overrides.apply(recipe, lane.overrides)
    degrees = settle_degrees(recipe, lane)
    dp = divide(recipe, degrees, lane.world, LAYOUTS[lane.regime])
    pattern = patterns.parse(recipe.pattern, recipe.depth)
    found = Refusals()
    experts = recipe.moe is None or "E" in pattern.letters
    found.unless(experts, "moe", "on", f"no block of {recipe.pattern} is an E", "turn moe off, or give it E blocks")
    if lane.regime == "megatron":
        _refuse_for_megatron(recipe, lane, pattern, found)
    found.unless(degrees.tp <= min(lane.gpus, NVLINK_DOMAIN), "tp", degrees.tp,
                 f"must stay inside a node of {lane.gpus} GPUs", "lower tp")  # fmt: skip
    set_, unset = _environment(recipe, lane, degrees, found)
    found.raise_any()
    argv = _megatron_argv(recipe, lane, degrees, dp, pattern) if lane.regime == "megatron" else arguments.write(
        recipe, lane, degrees)  # fmt: skip
    for word in (*argv, *_torchrun(lane)):
        found.unless("\0" not in word, "argv", word, "holds a NUL, which no process can be given", "take it out")
    found.raise_any()
    launcher, version = MEGATRON if lane.regime == "megatron" else (arguments.LAUNCHER, arguments.VERSION)
    return Launch(
        torchrun=_torchrun(lane),
        script=SCRIPTS[lane.regime],
        argv=argv,
        env=set_,
        unset=unset,
        recorded={name: value for name, value in sorted(lane.inherited.items()) if name.startswith(RECORDED_PREFIXES)},
        launcher=launcher,
        launcher_version=version,
        degrees=degrees,
        world=lane.world,
        recurrent=patterns.layers_of(pattern, "R"),
        sparse=_sparse_layers(recipe, pattern),
        gives_up=_gives_up(lane, pattern),
    )


def settle_degrees(recipe: Recipe, lane: Lane) -> Degrees:
    """The degrees that run: the lane's if it gives any, else the recipe's; the mode decides TP and SP.

    Raises:
        Refused: for a mode that is not the recipe's, or degrees that are not the mode's.
    """
    if lane.mode not in recipe.modes:
        raise refuse("mode", lane.mode, f"{recipe.name} runs as {' or '.join(recipe.modes)}", "choose one of those")
    tp = TP_OF_MODE[lane.mode]
    _refuse_overridden_degrees(recipe, lane, tp).raise_any()
    if lane.degrees is None:
        return replace(recipe.degrees, tp=tp, sp=tp > 1)
    if (lane.degrees.tp, lane.degrees.sp) != (tp, tp > 1):
        problem = f"{lane.mode} means tp {tp} {'with' if tp > 1 else 'without'} sequence parallelism"
        raise refuse(
            "degrees", f"tp {lane.degrees.tp}, sp {lane.degrees.sp}", problem, "change the mode or the degrees"
        )
    return lane.degrees


def _refuse_overridden_degrees(recipe: Recipe, lane: Lane, tp: int) -> Refusals:
    """An override of a degree that something else decides would be accepted and change nothing."""
    found = Refusals()
    asked = [key for key in lane.overrides if key.split(".")[0] == "degrees"]
    for key in asked if lane.degrees is not None else ():
        found.add(key, lane.overrides[key], f"the lane gives all degrees ({lane.degrees})", "give it in one place")
    if {"degrees.tp", "degrees"} & set(asked):
        found.unless(recipe.degrees.tp == tp, "degrees.tp", recipe.degrees.tp, f"{lane.mode} means tp {tp}",
                     "change the mode")  # fmt: skip
    if {"degrees.sp", "degrees"} & set(asked):
        found.unless(recipe.degrees.sp == (tp > 1), "degrees.sp", recipe.degrees.sp,
                     f"{lane.mode} means {'sequence' if tp > 1 else 'no sequence'} parallelism",
                     "change the mode")  # fmt: skip
    return found


def divide(recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
    """The data-parallel size of a recipe over a world.

    Raises:
        Refused: everything that does not divide, at once.
    """
    dp = len(grids(degrees, world, layout).dense.groups("dp")[0])
    refusals_on(recipe, degrees, dp).raise_any()
    return dp


def _refuse_for_megatron(recipe: Recipe, lane: Lane, pattern: Pattern, found: Refusals) -> None:
    native = lane.mode == "nemo_native"
    author = "run it as author_dp, whose layer spec carries it"
    some_sparse = recipe.dsa is not None and len(recipe.dsa.a_ranks) < len(patterns.layers_of(pattern, "A").numbers)
    if native and recipe.mhc is not None:
        found.add("mhc", "on", f"{MEGATRON[0]} {MEGATRON[1]} has no hyper-connections", author)
    if native and some_sparse:
        found.add("dsa", "on some A-ranks", f"{MEGATRON[0]} refuses a mix of * and D", author)
    if lane.compile != "none":
        found.add("compile", lane.compile, "is our trainer's policy, not Megatron-LM's", "use the fsdp2 regime")
    if recipe.optim.schedule == "WSD":
        problem = "needs the length of its last phase, which a recipe does not say and Megatron-LM does not guess"
        found.add("optim.schedule", "WSD", problem, "use cosine, linear or constant, or the fsdp2 regime")
    said = {
        "data.path": recipe.data.path,
        "data.tokenizer": recipe.data.tokenizer,
        "checkpoint.save": recipe.checkpoint.save,
        "checkpoint.load": recipe.checkpoint.load,
    }
    for field, text in said.items():
        if text is not None and (not text or text.startswith("-")):
            found.add(field, text, "is empty or begins with -, which the parser takes for a flag", "write ./ before it")


def _megatron_argv(recipe: Recipe, lane: Lane, degrees: Degrees, dp: int, pattern: Pattern) -> Words:
    every: tuple[Callable[[], Words], ...] = (
        lambda: _model(recipe),
        lambda: _blocks(recipe, lane, degrees, pattern),
        lambda: _mamba(recipe, pattern),
        lambda: _moe(recipe),
        lambda: _attention(recipe),
        lambda: _mtp(recipe),
        lambda: _precision(recipe),
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
        "--disable-bias-linear",
        # Megatron drops 10 % where nothing is said; a recipe has no dropout.
        *_flag("--attention-dropout", 0.0),
        *_flag("--hidden-dropout", 0.0),
    )
    if recipe.untied_embeddings:
        words += ("--untie-embeddings-and-output-weights",)
    return words + (("--qk-layernorm",) if recipe.qk_norm else ())


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


def _mamba(recipe: Recipe, pattern: Pattern) -> Words:
    if not {"M", "R"} & set(pattern.letters):
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
        *_flag("--moe-router-load-balancing-type", "aux_loss" if moe.aux_loss else "none"),
    )
    if moe.aux_loss:
        words += _flag("--moe-aux-loss-coeff", moe.aux_loss)
    if moe.z_loss:
        words += _flag("--moe-z-loss-coeff", moe.z_loss)
    if moe.shared_hidden:
        words += _flag("--moe-shared-expert-intermediate-size", moe.shared_hidden)
    return words + (("--moe-router-enable-expert-bias",) if moe.selection_bias else ())


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
        *_flag("--adam-beta1", optim.beta1),
        *_flag("--adam-beta2", optim.beta2),
        *_flag("--clip-grad", optim.clip),
        *_flag("--seed", recipe.seed),
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


def _torchrun(lane: Lane) -> Words:
    if lane.nodes == 1:
        return ("torchrun", "--standalone", f"--nproc_per_node={lane.gpus}")
    return (
        "torchrun",
        f"--nnodes={lane.nodes}",
        f"--nproc_per_node={lane.gpus}",
        "--rdzv_backend=c10d",
        f"--rdzv_id={lane.run}",
        f"--rdzv_endpoint={lane.rendezvous}",
    )


ALLOCATOR = "expandable_segments:True"


def _environment(recipe: Recipe, lane: Lane, degrees: Degrees, found: Refusals) -> tuple[dict[str, str], Words]:
    """What the lane sets and what it removes. The value of CUDA_DEVICE_MAX_CONNECTIONS is a function of the lane:
    Megatron's overlap needs one queue under TP or CP, FSDP2's needs several."""
    _refuse_inherited(lane, found)
    env = {
        "TORCH_NCCL_HIGH_PRIORITY": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7200",
        "PYTORCH_ALLOC_CONF": ALLOCATOR,
    }
    if lane.regime == "megatron" and (degrees.tp > 1 or degrees.cp > 1):
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    elif lane.force_max_connections:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    if degrees.pp > 1:
        env["NANOCHAT_FORCE_BATCHED_PP_INIT_P2P"] = "1"
    beside = _beside(recipe, lane)
    if beside:
        env["LANEGATE_AUTHOR_LAYERS"] = json.dumps(beside, separators=(",", ":"))
    owned = ("CUDA_DEVICE_MAX_CONNECTIONS", "NANOCHAT_FORCE_BATCHED_PP_INIT_P2P")
    return env, tuple(name for name in owned if name not in env)


def _refuse_inherited(lane: Lane, found: Refusals) -> None:
    inherited = lane.inherited
    alias = inherited.get("PYTORCH_CUDA_ALLOC_CONF")
    if alias not in (None, ALLOCATOR):
        problem = f"is an alias of PYTORCH_ALLOC_CONF, which this lane sets to {ALLOCATOR}"
        found.add("PYTORCH_CUDA_ALLOC_CONF", alias, problem, "unset it")
    fabric = inherited.get("NCCL_MNNVL_ENABLE")
    if fabric not in (None, "0", "2"):
        problem = "forces a path whose initialisation may fail" if fabric == "1" else "is no value of this variable"
        found.add("NCCL_MNNVL_ENABLE", fabric, problem, "unset it; 2 or 0 are for diagnosis")
    visible = inherited.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        _refuse_masking(visible, lane.gpus, found)


def _refuse_masking(visible: str, gpus: int, found: Refusals) -> None:
    """Every rank must see every GPU of the node, under its own number."""
    devices = [device.strip() for device in visible.split(",")]
    # CUDA ignores what stands behind the first entry that is no device, and shows none at all when one is repeated.
    end = next((i for i, device in enumerate(devices) if not device or device.startswith("-")), len(devices))
    seen = devices[:end] if len(set(devices[:end])) == end else []
    remedy = "unset it; ranks choose their device by LOCAL_RANK"
    problem = f"shows {len(seen)} devices to a lane of {gpus} GPUs a node"
    found.unless(len(seen) >= gpus, "CUDA_VISIBLE_DEVICES", visible, problem, remedy)
    numbers = [int(device) for device in seen if device.isdecimal()]
    problem = "renumbers the devices, and the topology that was measured is no longer the one that runs"
    found.unless(numbers == sorted(numbers), "CUDA_VISIBLE_DEVICES", visible, problem, remedy)


def _beside(recipe: Recipe, lane: Lane) -> dict[str, object]:
    """What Megatron's flags cannot say and the author's layer spec reads instead. Layer numbers are 1-based."""
    if lane.regime != "megatron" or lane.mode != "author_dp":
        return {}
    pattern = patterns.parse(recipe.pattern, recipe.depth)
    said: dict[str, object] = {}
    if recurrent := patterns.layers_of(pattern, "R").numbers:
        said["recurrent_layers"] = recurrent
    if sparse := _sparse_layers(recipe, pattern).numbers:
        said["sparse_layers"] = sparse
    if recipe.mhc is not None:
        said["residual_streams"] = recipe.mhc.streams
    return {"base": 1, **said} if said else {}


def _sparse_layers(recipe: Recipe, pattern: Pattern) -> LayerNumbers:
    ranks = recipe.dsa.a_ranks if recipe.dsa else ()
    return patterns.placement(pattern, ranks).sparse_layers


def _gives_up(lane: Lane, pattern: Pattern) -> Words:
    recurrent = patterns.layers_of(pattern, "R").numbers
    if lane.mode == "author_dp" or lane.regime != "megatron" or not recurrent:
        return ()
    layers = ", ".join(map(str, recurrent))
    return (f"layers {layers} (1-based) run the built-in Mamba mixer instead of the recurrent block",)


def _flag(name: str, value: object) -> Words:
    return (name, str(value))
