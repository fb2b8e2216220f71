"""What this adapter asks of torchtitan 0.3.0 on a CPU: the features that it has, and why not the others."""

from contracts.spec import Abilities
from contracts.stacks.kit.declining import STEPS, lacks, without

DRAWS = "on a CPU each rank draws its shards by itself: DTensor's generators are accelerators'"
"""torch 2.13, distributed/tensor/_random.py: `is_rng_supported_mesh`."""
CUT = ("fsdp", "tp", "ep")
"""What makes a parameter a shard."""

OF_GPT_OSS = "its experts with biases are gpt-oss's, whose activation is its own"

ABILITIES = Abilities(
    has=frozenset((
        "attention-bias", "mlp-bias", "router-bias",
        "attention", "mlp", "experts", "gqa", "mla", "qk-norm", "swiglu", "softmax", "sigmoid", "selection-bias",
        "shared-expert", "route-scale", "tied", "float64", "float32", "bf16", "adamw", "muon", "cosine", "linear",
        "constant", "WSD", "microbatches", "checkpoint", "dp", "fsdp", "replicas", "tp", "sp", "tp-without-sp", "ep",
        "etp", "pp", "interleaved", "borrowed", "compile", "compiled-blocks", "recompute", "validation",
        "group-limited", "outer-rates", "layer-rates", "bias-rates", "largest-loss", "tp-without-fsdp",
    )),
    lacks=(
        lacks("checkpoint pp selection-bias", "stack",
              "a trial pass of its pipelines moves selection biases, and otherwise in each run"),
        lacks("uneven-validation", "adapter", "ranks are given their parts of a batch, and all are alike"),
        lacks("frozen", "adapter", "it was not asked to freeze anything"),
        lacks("refrozen", "adapter", "it was not asked to freeze anything"),
        lacks("changing-batches", "adapter", "it gives its trainer batches of one size"),
        *(lacks(f"{kind}expert-bias", "stack", OF_GPT_OSS) for kind in ("", "cut-")),
        lacks("recurrent", "stack", "it has no M²RNN"),
        lacks("dropout", "stack", "it drops nothing"),
        lacks("changing-decay", "stack", "its schedules are of the rate"),
        lacks("mamba", "stack", "it has no Mamba"),
        lacks("narrow-scan", "stack", "it has no Mamba"),
        lacks("unpaired", "stack", "its layer is attention and then experts, no other order"),
        lacks("relu2", "stack", "its MLPs and its experts are gated only by silu"),
        lacks("balance-loss", "stack", "it has no auxiliary loss, only a selection bias"),
        lacks("z-loss", "stack", "it has no auxiliary loss, only a selection bias"),
        lacks("capacity", "stack", "it drops no token"),
        lacks("top-1", "stack", "gates of one expert are not normalised otherwise"),
        lacks("hyper-connections", "stack", "it has none"),
        lacks("parallel-ssm", "stack", "it has no Mamba"),
        lacks("dsa", "stack", "it has no sparse attention"),
        lacks("prediction-heads", "stack", "its layers of prediction have experts, the law's none"),
        lacks("own-axis", "stack", "it carves experts out of the dense ranks"),
        lacks("author-dp", "stack", "its Mamba would be Mamba-3, and it has none"),
        lacks("float64", "stack", "its trainer computes in float32 or bfloat16",
              asked=frozenset({"train", "messages"})),
        *(lacks(cut, "device", DRAWS, asked=frozenset({"initial"})) for cut in CUT),
        lacks("experts tp", "stack", "under TP its even router, debug.moe_force_load_balance, mixes tensors and raises",
              asked=frozenset({"rehearse"})),
        lacks("pp", "stack", "torch's stages send each other shapes in messages, and its fake backend delivers none",
              asked=frozenset({"rehearse"})),
        lacks("compile", "adapter", "a single pass is eager; sessions have the rest", asked=frozenset({"run_model"})),
        lacks("fp16", "stack", "its mixed precision is bfloat16"),
        lacks("ep-without-fsdp", "stack", "experts lie on ranks that shard: EP wants FSDP"),
        lacks("etp-without-ep", "stack", "experts are cut as the rest is without EP"),
        lacks("tied pp", "stack", "it ties no weights under a pipeline, it says"),  # models/common/decoder.py
        lacks("ep-with-etp", "stack", "experts are whole on a rank with EP; 0.2.2 has an expert TP"),
        lacks("uneven-kv", "stack", "it has fewer KV groups than TP ranks"),
        lacks("fp8", "device", "FP8 needs a GPU", asked=STEPS | {"block_weights", "run_block", "precision_plan"}),
        lacks("packed", "device", "packed documents need its flex_attention, which a CPU has not compiled"),
        # torch: tensor/experimental/_context_parallel; flex_attention has no backward pass on a CPU
        lacks("cp", "device", "its context parallel cuts attention kernels that are only accelerators'"),
        *(lacks(f"muon {cut}", "stack", "its Kimi refuses DistMuon beside it: it has no such shards")
          for cut in ("tp", "pp")),  # models/kimi_k2_7/config_registry.py: _KimiTrainerConfig
        lacks("muon layer-rates", "adapter", "rates are given to groups of AdamW; Muon's matrices are one group"),
        lacks("muon dp", "device", "DistMuon sends shards over streams and events, which a CPU has not"),
        lacks("own-data", "adapter", "its data sets need a tokenizer's files"),
        lacks("windows", "adapter", "it is given batches and cuts them itself"),
        lacks("uneven-microbatches", "stack", "a batch is a multiple of its microbatches, it asserts"),
        lacks("uneven-vocab", "adapter", "it was not tried"),
        lacks("checkpoint-of-a-recipe", "stack", "it compares no configuration with a checkpoint's"),
        without("seams kernel_facts kernels kernel promotion", "stack",
                "a site has the kernel that its configuration names, or raises: none is chosen, and there is no table"),
        without("budget fit card", "stack", "it plans no memory, it reports peaks"),
        without("checkpoint_folder", "stack", "it saves where it is asked to, whatever volume that is"),
        without("probe_compiler", "stack", "it does not try the compiler before it is used"),
        without("samples sample", "stack",
                "each rank packs rows out of documents of its own: a row has no id, and depends on the ranks"),
        without("reduced", "stack", "its layers sum by DTensor, which is torch's"),
        without("devices", "device", "get_local_device takes cpu:0 on every rank: a CPU is one device"),
        without("fabric_pass fabric_reasons", "stack", "it measures no fabric before a run"),
        without("run_receipts", "stack", "it logs metrics, and writes no receipt"),
    ),
)  # fmt: skip
"""What a step needs. Blocks by themselves have no ladder."""

CONVENTIONS = {
    "rope-angles": "float32",
    "softmax-router": "bfloat16-weight",
    "sigmoid-router": "bfloat16-weight",
    "gate-sum": "1e-20",
    "bias-moves": "centred",
    "logits-dtype": "activations",
    "muon-products": "bfloat16",
    "last-rate": "step-before",
    "communicators": "purpose",
    "blend-order": "drawn",
    "rows-of-ranks": "documents",
}
"""Its choices where correct stacks differ."""
