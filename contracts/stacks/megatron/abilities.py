"""What this adapter asks of Megatron-Core on a CPU: the features that it has, and why not the others."""

from dataclasses import replace

from contracts.spec import Abilities, public
from contracts.stacks.kit.declining import lacks, without

NO_EVEN_ROUTER = "a dry run has no even router: its forced balance draws experts at random"
NO_MUON = "its Muon is of a package of its own, emerging_optimizers, which is not installed"
VERSIONS = ("0.16.1", "0.17.1", "0.18.1", "0.19.2")
"""The tried versions, oldest first. 0.17 and later ship the training script and its parser."""

ABILITIES = Abilities(
    has=frozenset((
        "attention", "mlp", "experts", "mamba", "narrow-scan", "unpaired",
        "gqa", "mla", "qk-norm", "relu2", "swiglu", "tied", "dropout", "prediction-heads",
        "softmax", "sigmoid", "top-1", "selection-bias", "shared-expert", "route-scale", "balance-loss", "z-loss",
        "attention-bias", "mlp-bias", "expert-bias", "router-bias",
        "group-limited", "capacity", "capacity-by-gate", "float64", "float32", "bf16", "fp16",
        "adamw", "cosine", "linear", "constant", "WSD", "changing-decay",
        "microbatches", "recompute", "packed", "checkpoint", "validation", "uneven-validation", "outer-rates",
        "dp", "fsdp", "replicas",
        "tp", "sp", "tp-without-sp", "ep", "etp", "pp", "interleaved", "borrowed",
        "author-dp", "ep-without-fsdp", "tp-without-fsdp", "etp-without-ep",
    )),
    lacks=(
        lacks("frozen", "adapter", "it was not asked to freeze anything"),
        lacks("refrozen", "adapter", "it was not asked to freeze anything"),
        lacks("changing-batches", "adapter", "it gives its trainer batches of one size"),
        lacks("dropout", "stack", "it drops elements of embeddings too", asked=frozenset({"run_model"})),
        lacks("dropout checkpoint", "adapter", "its script saves the generators, and was not asked to drop"),
        *(lacks(f"dropout {axis}", "adapter", "generators of ranks are CUDA's, which its script seeds")
          for axis in ("dp", "tp", "ep", "pp")),
        lacks("expert-bias shared-expert", "stack", "its shared expert asserts that no layer has a bias"),
        lacks("cut-expert-bias", "stack", "biases of experts want expert TP 1, it asserts"),
        lacks("recurrent", "stack", "it has no M2RNN"),
        lacks("hyper-connections", "stack", "it has none in a version that was tried"),
        lacks("parallel-ssm", "stack", "no version that was tried has a layer of two mixers"),
        lacks("own-axis", "stack", "it carves experts out of the dense ranks", asked=frozenset()),
        lacks("compile", "stack", "it has no option that compiles the model"),
        lacks("author-dp mamba", "stack", "its Mamba is Mamba-2"),
        lacks("mamba packed", "stack", "packed rows are one sequence to its mixers and several to its attention"),
        lacks("tp-without-sp experts", "stack", "its experts raise in the first forward pass of training"),
        lacks("fsdp pp", "stack", "the mesh of its FSDP has data, expert and tensor ranks and no stages"),
        lacks("fsdp checkpoint", "adapter", "checkpoints of its FSDP have a format of their own"),
        lacks("uneven-kv", "stack", "it has fewer KV groups than TP ranks"),
        lacks("dsa", "device", "its sparse attention asserts bfloat16 and wants a kernel that a CPU lacks"),
        lacks("fp8", "device", "FP8 is Transformer Engine's, which runs on GPUs", asked=frozenset()),
        lacks("cp", "device", "context parallel is only Transformer Engine's attention"),
        lacks("ep-with-etp", "device", "its experts exchange pieces of unequal size, which gloo does not"),
        lacks("float64 fsdp", "stack", "the buffers of its FSDP know no float64"),
        lacks("fp16 fsdp", "stack", "under a loss scale its FSDP raises where a rank has an empty shard"),
        lacks("mamba prediction-heads", "adapter", "its hybrid model with prediction heads was not tried"),
        lacks("muon", "adapter", NO_MUON),
        lacks("own-data", "adapter", "it reads data sets of its own and not the recipe's"),
        lacks("checkpoint-of-a-recipe", "stack", "of a checkpoint's arguments it compares layers, width and heads"),
        lacks("largest-loss", "stack", "its training logs means over ranks"),
        lacks("layer-rates", "stack", "its --decoupled-lr is of embedding and output projection"),
        lacks("bias-rates", "stack", "its selection biases have one rate, --moe-router-bias-update-rate"),
        lacks("windows", "adapter", "it is given batches and cuts them itself"),
        lacks("uneven-microbatches", "stack", "its calculator asserts microbatches of one size"),
        lacks("uneven-vocab", "adapter", "its padded rows take part in the loss"),
        lacks("interleaved mamba", "adapter", "its hybrid model in interleaved stages was not tried"),
        lacks("author-dp", "adapter", "the mode is not asked", asked=frozenset({"run_model"})),
        lacks("microbatches", "adapter", "a single pass is whole", asked=frozenset({"run_model"})),
        without("kernels kernel promotion", "stack", "it has no catalogue of kernels by card and workload"),
        without("fit card", "stack", "it knows no cards"),
        without("checkpoint_folder", "stack", "it saves where it is asked to, whatever volume that is"),
        without("probe_compiler", "stack", "it does not try the compiler before it is used"),
        without("seams kernel_facts", "stack",
                "its specification names its kernels, or a pass chooses them: it answers for no other machine"),
        without("preset preset_names", "stack", "it ships no recipe by name"),
        without("precision_plan", "device", "FP8 is Transformer Engine's, which runs on GPUs"),
        lacks("experts ep", "stack", NO_EVEN_ROUTER,
              asked=frozenset({"rehearse"})),
        without("started", "device", "its training script asserts CUDA"),
        without("devices", "device", "a rank has the CUDA device of its local rank"),
        without("fabric_pass fabric_reasons", "device", "its sniff test times all-reduces by CUDA's events"),
        without("run_compiled pass_compiled allowed_breaks compile_cold pads_rows wrapping", "stack",
                "it has no option that compiles a block or a model; it compiles fusions of its own (core/jit.py)"),
        without("retire_checkpoints", "stack",
                "its --save-retain-interval keeps every n-th checkpoint and no newest; it knows no copy of one"),
        without("rename_weights", "stack", "its checkpoints have the names of its model, and it renames none"),
        without("export_weights export_model", "adapter", "its converters of checkpoints were not tried"),
    ),
)  # fmt: skip
"""What a step needs. Blocks by themselves have no ladder."""

BEFORE_17 = "up to 0.16 a model with prediction heads asks for labels, and then returns no logits"
BEFORE_18 = "up to 0.17 latent attention in a hybrid model is given an argument that it does not take"
FROM_18 = "it was tried from 0.18 on"
NOT_SHARDED = "it is its FSDP that shards weights"
ELSEWHERE = "no optimizer has a part in the answer, which `megatron` gives"
_FSDP = frozenset({"fsdp", "replicas"})
_LATER = _FSDP | {"validation", "uneven-validation"}


OF_AN_OPTIMIZER = frozenset({"built", "initial", "train", "messages", "rehearse"})
"""The questions in whose answers an optimizer has a part."""


WITH_MUON = (
    lacks("muon fp16", "stack", "its emerging optimizers refuse float16"),
    *(lacks(f"muon {each}", "stack", "its emerging optimizers refuse it")
      for each in ("fsdp", "replicas")),
)  # fmt: skip


def of_version(version: str, *, distributed_optimizer: bool = False, muon: bool = False) -> Abilities:
    """What is asked of a version; of an untried one what is asked of the newest."""
    found, version = ABILITIES, public(version)
    if muon:
        rest = tuple(each for each in found.lacks if each.reason != NO_MUON)
        found = replace(found, has=found.has | {"muon"}, lacks=(*WITH_MUON, *rest))
    if version in ("0.16.1", "0.17.1"):
        lacking = [lacks(feature, "adapter", FROM_18) for feature in sorted(_LATER)]
        lacking.append(lacks("mamba mla", "stack", BEFORE_18))
        if version == "0.16.1":
            lacking.append(lacks("bf16 prediction-heads", "stack", BEFORE_17, asked=frozenset({"run_model"})))
            lacking.append(lacks("fp16 prediction-heads", "stack", BEFORE_17, asked=frozenset({"run_model"})))
        found = replace(found, has=found.has - _LATER, lacks=(*found.lacks, *lacking))
    if not distributed_optimizer:
        return found
    others = [lacks(feature, "stack", NOT_SHARDED) for feature in sorted(_FSDP)]
    elsewhere = without(
        "topology group_calls gradient_reduction live_mesh reduced read_argv read_pattern block_weights run_block "
        "run_delta_rule run_model rows_of "
        "trace write_checkpoint write_on_ranks latest_checkpoint load_checkpoint", "stack", ELSEWHERE,
    )  # fmt: skip
    return replace(found, has=found.has - _FSDP, lacks=(*others, elsewhere, *found.lacks))


CONVENTIONS = {
    "rope-angles": "float32",
    "rope-turns": "activations",
    "softmax-router": "bfloat16-weight",
    "sigmoid-router": "bfloat16-weight",
    "gate-sum": "1e-20",
    "capacity-counts": "kept",
    "muon-projections": "stacked",
    "padding-slots": "as-others",
    "prediction-input": "normed",
    "first-rate": "step-0",
    "warm-up-without-decay": "refused",
    "gathered-input": "again",
    "communicators": "purpose",
    "misfits": "first",
    "repeated-flag": "last-wins",
    "overridden-flag": "warned",
    "empty-pattern": "no-layers",
}
"""Its choices where correct stacks differ."""
