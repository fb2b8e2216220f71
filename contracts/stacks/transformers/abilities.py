"""What this adapter asks of transformers on a CPU: the features that it has, and why not the others."""

from dataclasses import replace

from contracts.spec import Abilities, public
from contracts.stacks.kit.declining import lacks, without

VERSIONS = ("5.23.0", "5.10.4", "4.57.6")
"""The tried versions; the first is made where none is asked for."""
EP_IN_FLOAT32 = "in float64 torch's FSDP2 divides the gradients of experts that one rank holds twice: asked in float32"
OF_GPT_OSS = "experts and routers with biases are gpt-oss's, whose activation is its own"
ABILITIES = Abilities(
    has=frozenset((
        "attention", "mlp", "experts", "mamba", "narrow-scan", "unpaired",
        "gqa", "mla", "qk-norm", "parallel-ssm", "attention-bias", "mlp-bias", "swiglu", "relu2", "softmax",
        "sigmoid", "group-limited",
        "top-1", "selection-bias", "shared-expert", "route-scale", "tied", "float64", "float32", "bf16", "adamw",
        "cosine", "linear", "constant", "WSD", "microbatches", "uneven-microbatches", "windows", "packed", "recompute",
        "compile", "validation", "checkpoint", "frozen", "changing-batches",
        "dp", "fsdp", "replicas", "ep", "etp", "borrowed",
    )),
    lacks=(
        lacks("uneven-validation", "adapter", "its Trainer is given each rank's part of a batch, and all are alike"),
        lacks("float64 ep", "adapter", EP_IN_FLOAT32),
        lacks("outer-rates", "stack", "its Trainer groups parameters by their decay"),
        lacks("changing-decay", "stack", "its schedules are of the rate"),
        lacks("largest-loss", "stack", "its Trainer logs a mean over ranks"),
        lacks("layer-rates", "stack", "its Trainer groups parameters by their decay"),
        lacks("bias-rates", "stack", "its Trainer moves no selection bias"),
        lacks("refrozen", "stack", "its Trainer loads optimizer state by the number of parameters"),
        lacks("dropout", "stack", "its models with experts drop only attention weights"),
        *(lacks(f"{kind}-bias", "stack", OF_GPT_OSS) for kind in ("expert", "cut-expert", "router")),
        lacks("attention-bias experts", "adapter", "of its models with experts no biases of attention were tried"),
        lacks("mlp-bias qk-norm", "stack", "the MLPs of Qwen3 have no bias"),
        lacks("recurrent", "stack", "no model has an M²RNN"),
        lacks("hyper-connections", "stack", "no model has them"),
        *(lacks(f"parallel-ssm {other}", "stack", "Falcon-H1 has grouped attention without a QK norm, and MLPs")
          for other in ("experts", "mamba", "mla", "qk-norm")),
        *(lacks(f"parallel-ssm {place}-bias", "adapter", "Falcon-H1's biases were not tried")
          for place in ("attention", "mlp")),
        lacks("parallel-ssm fsdp", "stack", "sharded, Falcon-H1's multipliers are memory that nobody wrote"),
        lacks("parallel-ssm packed", "device", "without mamba-ssm's kernels it refuses packed documents in a scan"),
        lacks("prediction-heads", "stack", "its models of multi-token prediction do not train the heads"),
        lacks("fp8", "stack", "no model has FP8 training"),
        lacks("capacity", "stack", "no model drops tokens"),
        lacks("z-loss", "stack", "no model has a z loss on router logits"),
        lacks("balance-loss", "stack", "its balance loss is over all layers of a batch, times top_k"),
        lacks("softmax route-scale", "stack", "no model scales gates from a softmax"),
        lacks("attention relu2", "stack", "attention beside relu2 has no rope (NemotronH)"),
        lacks("attention mamba qk-norm", "stack", "no model has a scan beside a QK norm"),
        lacks("attention narrow-scan", "stack", "Granite's scan is a multiple of the hidden size wide"),
        lacks("attention unpaired", "stack", "a layer is a mixer and then an MLP or experts"),
        lacks("swiglu unpaired", "stack", "a layer is a mixer and then an MLP or experts"),
        lacks("mamba mla", "stack", "no model has a scan beside latent attention"),
        lacks("mla softmax", "stack", "experts beside latent attention stand after a sigmoid"),
        lacks("gqa sigmoid", "stack", "experts after a sigmoid stand beside latent attention"),
        lacks("qk-norm shared-expert", "stack", "Qwen3-MoE has no shared expert"),
        lacks("own-axis", "stack", "its experts lie on ranks that shard"),
        lacks("author-dp", "stack", "no model has Mamba-3"),
        lacks("sp", "stack", "its sequence parallel is a name, not wired up"),
        lacks("pp", "stack", "its pipelines do not train"),
        lacks("interleaved", "stack", "its pipelines do not train"),
        lacks("ep-without-fsdp", "stack", "its expert parallel lies on ranks that shard"),
        lacks("ep-with-etp", "stack", "its experts are whole on a rank of expert parallel"),
        *(lacks(f"{cut} checkpoint", "stack", "it does not resume a model that it cut over ranks")
          for cut in ("fsdp", "ep")),
        lacks("checkpoint-of-a-recipe", "stack", "its Trainer compares no configuration with a checkpoint's"),
        lacks("tp", "device", "accelerate takes tensor parallel only on accelerators"),
        *(lacks(f"tp-without-{other}", "device", "accelerate takes tensor parallel only on accelerators")
          for other in ("sp", "fsdp")),
        lacks("etp-without-ep", "device", "accelerate takes tensor parallel only on accelerators"),
        lacks("uneven-kv", "device", "accelerate takes tensor parallel only on accelerators"),
        lacks("uneven-vocab", "device", "accelerate takes tensor parallel only on accelerators"),
        lacks("fp16", "device", "its Trainer has no float16 on a CPU"),
        lacks("mamba packed", "device", "without mamba-ssm's kernels it refuses packed documents in a scan"),
        # accelerate: Accelerator._prepare_cp takes torch's context_parallel, which knows no kernel of a CPU
        lacks("cp", "device", "context parallel cuts attention kernels that are only accelerators'"),
        lacks("muon", "stack", "its Trainer has no Muon of its own; a caller hands one over"),
        lacks("compiled-blocks", "stack", "its compiler takes the whole model"),
        lacks("dsa", "adapter", "sparse attention is asked in blocks"),
        lacks("own-data", "adapter", "it has no data of its own; give batches"),
        lacks("compile", "adapter", "a single pass is one process's, eager; sessions have the rest",
               asked=frozenset({"run_model"})),
        lacks("bf16", "adapter", "under autocast no parameter has one dtype in which it is used",
               asked=frozenset({"built"})),
        without("seams kernel_facts", "stack",
                "it takes what it can import on the machine that it runs on, and answers for no other"),
        without("kernels kernel promotion", "stack", "it has no catalogue of kernels by card and workload"),
        without("fit card", "stack", "it knows no cards"),
        without("checkpoint_folder", "stack", "it saves where it is asked to, whatever volume that is"),
        without("probe_compiler", "stack", "it does not try the compiler before it is used"),
        without("messages", "stack", "its pipelines do not train"),
        without("sample", "stack", "it has no data of its own: a caller hands its Trainer a data set"),
        without("rows_of", "stack", "its Trainer is given data sets as they are, and splits and blends none"),
        without("budget", "stack", "accelerate estimates a whole model of the hub by its size, and no rank's parts"),
        without("reduced", "stack", "its layers sum by hooks over torch's collectives"),
        without("devices", "device", "accelerate takes cpu on every rank: a CPU is one device"),
        without("fabric_pass fabric_reasons", "stack", "it measures no fabric before a run"),
        without("run_receipts", "stack", "its Trainer logs and leaves its own state, no receipt"),
        without("export_weights", "adapter", "its save_pretrained was not tried for this"),
        without("rehearse", "stack", "it has no dry run, nor has accelerate: no rank steps without its peers"),
        without("started", "stack", "it ships no command that trains such a model: a caller writes the script"),
        without("write_in_background write_in_background_on_ranks", "stack",
                "its Trainer continues when a save is done, and has no other"),
        without("precision_plan", "stack", "autocast, its mixed precision, decides by operation and by no parameter"),
        without("preset preset_names", "stack", "what has a name is on the hub, and no recipe comes with the package"),
    ),
)  # fmt: skip
"""What a step needs. Blocks by themselves have no ladder."""

OLDER = ("5.10.4", "4.57.6")
UNCUT = "up to 5.10 models are cut only by accelerate, which takes accelerators for it"
NO_OPTIMIZER = "up to 5.10 ranks on CPUs load no optimizer: of the device cpu:0 torch.load knows nothing"
NO_NEMOTRON = "up to 4.57 it has no NemotronH, whose MLPs and experts have relu2"
NO_MESHES = "up to 5.10 its one mesh is of tensor parallel ranks, made while a model is loaded"


def of_version(version: str) -> Abilities:
    """What is asked of a tried version."""
    lacking, version = [], public(version)
    if version in OLDER:
        lacking += [lacks(feature, "device", UNCUT) for feature in ("fsdp", "replicas", "ep", "etp")]
        lacking.append(without("live_mesh", "stack", NO_MESHES))
        lacking.append(lacks("parallel-ssm", "adapter", "Falcon-H1 was not tried in this version"))
    if version == "4.57.6":
        lacking.append(lacks("relu2", "stack", NO_NEMOTRON))
        lacking.append(lacks("mamba unpaired", "stack", "up to 4.57 an MLP or experts stand after each scan"))
    return replace(ABILITIES, lacks=(*ABILITIES.lacks, *lacking))
