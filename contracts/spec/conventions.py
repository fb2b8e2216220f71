"""Conventions: where correct stacks differ, the choices that there are, and which of them a stack declares.

A stack declares its choices as `conventions`, a mapping of names to choices; where it names none, it has the first. A
check follows what is declared, so that any departure from it is a violation: a stack that declares float32 angles and
has bfloat16 ones, and one that declares float32 angles and has exact ones.

A convention is no way out. A new choice needs a stack that has it on purpose, and a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from contracts.spec.errors import Refusals


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice: its name, what a stack does that has it, where it is found, and the scripts that show it."""

    name: str
    means: str
    source: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Convention:
    """A question on which correct stacks differ. A stack that declares nothing has the first choice."""

    about: str
    choices: tuple[Choice, ...]

    @property
    def default(self) -> str:
        return self.choices[0].name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(choice.name for choice in self.choices)


def _convention(about: str, *choices: tuple[str, str, str], shown: str = "") -> Convention:
    """`shown` names the scripts that show the second choice, under `docs/confirmed/`."""
    found = [Choice(name=name, means=means, source=source) for name, means, source in choices]
    found[1] = replace(found[1], shown=tuple(shown.split()))
    return Convention(about=about, choices=tuple(found))


_ROUTER = (
    ("float32", "its weight and its product are float32", "Megatron-Core: --moe-router-dtype fp32; arXiv 2101.03961"),
    (
        "bfloat16-weight",
        "its weight is held in bfloat16 like all others (the optimizer has a float32 master), its product is float32",
        "Megatron-Core 0.19.2: Float16Module; torchtitan 0.3.0: MixedPrecisionPolicy",
    ),
    (
        "activations",
        "its product and its gates have the dtype of the activations, its softmax is float32",
        "transformers 5.23: Qwen3MoeTopKRouter, GraniteMoeHybridTopKGating under autocast",
    ),
)

_ROUTERS = "megatron_router_in_bfloat16 torchtitan_router_in_bfloat16"

CONVENTIONS: Mapping[str, Convention] = {
    "rope-angles": _convention(
        "in which precision position times frequency is computed",
        ("exact", "no angle is off by more than its own rounding", "arXiv 2104.09864, section 3.4.2"),
        (
            "float32",
            "1 / theta^(2j/d) and its product with the position are float32, off by up to position · 2^-24",
            "Megatron-Core: RotaryEmbedding; torchtitan: precompute_freqs_cis; transformers: ROPE_INIT_FUNCTIONS",
        ),
        shown="megatron_angles_in_float32 torchtitan_angles_in_float32",
    ),
    "rope-turns": _convention(
        "the dtype of the cosines and sines with which rope multiplies under bfloat16",
        ("float32", "float32, as of the angles", "torchtitan, pull request 2575: apply_rotary_emb_cos_sin"),
        (
            "activations",
            "that of the queries and keys, to which they are rounded",
            "Megatron-Core: _apply_rotary_pos_emb_bshd; transformers: Qwen3MoeRotaryEmbedding",
        ),
    ),
    "softmax-router": _convention("the dtype of a router with softmax gates under bfloat16", *_ROUTER, shown=_ROUTERS),
    "sigmoid-router": _convention(
        "the dtype of a router with sigmoid gates under bfloat16", *_ROUTER[:2], shown=_ROUTERS
    ),
    "gate-sum": _convention(
        "the divisor of the chosen sigmoids",
        ("plain", "their sum", "arXiv 2412.19437, eq. 13"),
        (
            "1e-20",
            "their sum plus 1e-20",
            "DeepSeek-V3: modeling_deepseek.py; Megatron-Core, torchtitan and transformers after it",
        ),
        shown="megatron_adds_to_the_sum torchtitan_adds_to_the_sum",
    ),
    "capacity-counts": _convention(
        "which assignments move a selection bias where experts drop tokens",
        ("asked", "all of them, dropped ones included", "arXiv 2408.15664, algorithm 1, which has no capacity"),
        ("kept", "those that were kept", "Megatron-Core: TopKRouter.forward, tokens_per_expert"),
        shown="megatron_counts_what_was_kept",
    ),
    "bias-moves": _convention(
        "by what a step moves a selection bias",
        (
            "rate",
            "by the rate, up or down, or not at all",
            "arXiv 2408.15664, algorithm 1; Megatron-Core: get_updated_expert_bias",
        ),
        (
            "centred",
            "by that less the mean over all experts, so that the biases add up to what they did",
            "torchtitan: register_moe_load_balancing_hook, which says that it is not exactly the paper's",
        ),
        shown="torchtitan_centres_moves_of_a_bias",
    ),
    "balance-over": _convention(
        "which tokens a balance loss asks to be balanced",
        ("sequence", "those of each sequence, whichever ranks hold them", "arXiv 2412.19437, eq. 17-20"),
        (
            "microbatch",
            "those of one microbatch of a data-parallel rank, with the ranks that share it",
            "arXiv 2101.03961, eq. 4; Megatron-Core: --moe-router-load-balancing-type aux_loss",
        ),
        (
            "global-batch",
            "the load of all data-parallel ranks, over the microbatches of the step so far, and the probabilities of "
            "one microbatch",
            "arXiv 2501.11873; Megatron-Core: --moe-router-load-balancing-type global_aux_loss",
        ),
    ),
    "window-divides-by": _convention(
        "the divisor of the losses of labels in a step of several microbatches or ranks",
        (
            "labels",
            "the labels that count, over all microbatches and data-parallel ranks",
            "torchtitan: Trainer, global_valid_tokens; transformers: num_items_in_batch; Megatron-Core: "
            "--calculate-per-token-loss",
        ),
        (
            "microbatch-means",
            "each microbatch by its own labels, and the sum of these means by the number of microbatches and ranks",
            "Megatron-Core without --calculate-per-token-loss: pipeline_parallel.schedules",
        ),
    ),
    "shuffle-reach": _convention(
        "how far a sequence may move in the shuffled order of its epoch",
        ("epoch", "anywhere in its epoch", "PyTorch: RandomSampler, DistributedSampler; Megatron-Core: GPTDataset"),
        ("buffer", "as far as a buffer that is filled in order", "datasets: IterableDataset.shuffle; tf.data: shuffle"),
    ),
    "epoch-order": _convention(
        "in which order a dataset's next epoch is read",
        (
            "anew",
            "in one of its own",
            "Megatron-Core: GPTDataset, _build_document_index; PyTorch: DistributedSampler.set_epoch",
        ),
        ("alike", "in that of the first", "datasets: IterableDataset.shuffle, without set_epoch"),
    ),
    "blend-order": _convention(
        "how the dataset of a blend's next row is chosen",
        ("apportioned", "the one that is furthest below its part", "Megatron-Core: build_blending_indices; Fast-LLM"),
        (
            "drawn",
            "at random, with its weight as the chance",
            "torchtitan: InterleavedDataset; datasets: interleave_datasets",
        ),
    ),
    "rows-of-ranks": _convention(
        "which rows the data-parallel ranks read",
        (
            "shared",
            "together those that one rank would",
            "Megatron-Core: MegatronPretrainingSampler",
        ),
        (
            "documents",
            "each packs rows out of documents of its own",
            "torchtitan: HuggingFaceTextDataset; datasets: split_dataset_by_node",
        ),
    ),
    "validation-mean": _convention(
        "over what the loss of a validation is a mean",
        (
            "labels",
            "all labels of the validation that count",
            "torchtitan: Validator; Megatron-LM: evaluate",
        ),
        (
            "batches",
            "the means of its batches, each over its labels on all ranks; batches of one size weigh the same",
            "transformers: Trainer.prediction_step, and evaluation_loop with losses.repeat(batch_size)",
        ),
    ),
    "logits-dtype": _convention(
        "in which dtype a model hands over its logits",
        ("float32", "in float32, whatever the activations are in", "Megatron-Core: Float16Module, fp32_output"),
        (
            "activations",
            "in the dtype of its activations; its loss makes them float32 first",
            "torchtitan: cross_entropy_loss; transformers: ForCausalLMLoss",
        ),
        shown="torchtitan_logits_in_bfloat16",
    ),
    "prediction-input": _convention(
        "which hidden state a depth of multi-token prediction reads",
        (
            "residual",
            "the residual stream: the model's before its final norm, then that of the depth below before its norm",
            "arXiv 2412.19437, eq. 21-22: what TRM_k returns",
        ),
        (
            "normed",
            "what the output projection reads: the model's after its final norm, then that of the depth below after "
            "its norm",
            "Megatron-Core: TransformerBlock.final_layernorm, MultiTokenPredictionLayer._postprocess; vLLM: "
            "deepseek_mtp.py, as reported in vllm-project/vllm#47448",
        ),
        shown="megatron_heads_read_normed_states",
    ),
    "undecayed": _convention(
        "what weight decay spares",
        (
            "vectors",
            "what has one dimension: norms, biases, A_log, D and dt_bias",
            "Megatron-Core: get_megatron_optimizer; mamba-ssm: _no_weight_decay",
        ),
        ("embeddings", "the embedding, and nothing else", "OLMo-core: OptimGroupOverride; arXiv 2501.00656"),
        ("nothing", "nothing: norms decay as matrices do", "torchtitan: default_adamw, one group for .*"),
    ),
    "muon-products": _convention(
        "in which dtype Muon multiplies matrices while it orthogonalizes",
        (
            "float32",
            "float32 or wider",
            "Emerging-Optimizers, which Megatron-Core takes: newton_schulz, unless fp32_matmul_prec is medium",
        ),
        (
            "bfloat16",
            "bfloat16, whatever the weights are in",
            "kellerjordan.github.io/posts/muon; torch.optim.Muon; torchtitan: _zeropower_via_newtonschulz",
        ),
        shown="torchtitan_muon_in_bfloat16",
    ),
    "muon-projections": _convention(
        "whether Muon orthogonalizes apart what several projections make of one input",
        ("apart", "each is a matrix of its own", "arXiv 2502.16982; torchtitan: DistMuon"),
        (
            "stacked",
            "gate and up projection of an MLP or expert are one matrix, and so are z, x, B, C and dt of Mamba-2",
            "Megatron-Core: TensorParallelMuon, which cuts linear_qkv, and neither linear_fc1 nor in_proj",
        ),
    ),
    "padding-slots": _convention(
        "whether positions that hold no token take slots where experts drop tokens",
        ("none", "they take none; slots are counted over all positions", "flaxformer: ignore_padding_tokens"),
        (
            "as-others",
            "they take slots as tokens do",
            "Megatron-Core: apply_router_token_dropping, which is given no padding mask",
        ),
    ),
    "first-rate": _convention(
        "how a schedule counts",
        ("step-1", "the first step has the rate of step 1: lr / warmup", "torchtitan: linear_warmup_stable_decay"),
        (
            "step-0",
            "the first step has the rate of step 0: nothing under a warm-up, lr without one",
            "torch: LambdaLR; Megatron-Core: OptimizerParamScheduler; transformers: get_scheduler",
        ),
        shown="megatron_first_step_has_no_rate",
    ),
    "last-rate": _convention(
        "which rate the last step of a run has",
        ("min-lr", "min_lr, or the rate at which its schedule ends", "arXiv 1608.03983, eq. 5"),
        (
            "step-before",
            "after the warm-up each step has the rate of the step before: min_lr comes after the last step",
            "torchtitan: LRSchedulersContainer, a virtual last step",
        ),
    ),
    "warm-up-from": _convention(
        "where a warm-up begins",
        ("zero", "at 0", "arXiv 1706.02677, section 2.2"),
        ("min-lr", "at min_lr under WSD, at 0 otherwise", "transformers: get_wsd_schedule"),
    ),
    "warm-up-without-decay": _convention(
        "a warm-up as long as the run or longer",
        ("accepted", "the run ends at the top of the ramp, or below", "transformers: get_linear_schedule_with_warmup"),
        ("refused", "the run is refused, and the warm-up named", "Megatron-Core: OptimizerParamScheduler.__init__"),
        shown="megatron_warm_up_as_long_as_the_run",
    ),
    "gathered-input": _convention(
        "under sequence parallel, what a rank keeps of the input of a mixer, of which it has a run of the sequence",
        ("kept", "the whole, which it gathered in the forward pass", "torchtitan: its tensor parallel plans; DTensor"),
        (
            "again",
            "its own run, and the whole is gathered once more in the backward pass",
            "arXiv 2205.05198, section 4.2.2; Megatron-Core: LinearWithGradAccumulationAndAsyncCommunication",
        ),
    ),
    "gathered-weights": _convention(
        "under FSDP, how a rank holds the weights of a layer between its forward and its backward pass",
        ("again", "as a shard, and the whole is gathered again", "torch: fully_shard, reshard_after_forward=True"),
        (
            "kept",
            "whole, as gathered for the forward pass",
            "torchtitan: fsdp_reshard_after_forward = never; Megatron-LM: --torch-fsdp2-no-reshard-after-forward",
        ),
    ),
    "communicators": _convention(
        "when two axes have the same ranks",
        (
            "members",
            "one process group for the same members",
            "this suite's bring-up, which hung with two; torch: DeviceMesh._flatten",
        ),
        (
            "purpose",
            "one process group for each purpose, so that collectives of two purposes overlap",
            "Megatron-Core: parallel_state.initialize_model_parallel; torch: init_device_mesh, a group a dimension",
        ),
        shown="megatron_makes_groups_twice",
    ),
    "misfits": _convention(
        "how many misfits of a layout one refusal names",
        ("all", "all of them", "this suite's bring-up"),
        ("first", "the first; the next after that is mended", "Megatron-Core: initialize_model_parallel"),
        shown="megatron_names_one_divisor",
    ),
    "repeated-flag": _convention(
        "a flag that is given twice with different values",
        ("refused", "the argv is refused", "this suite's naming rules"),
        ("last-wins", "the last value counts", "Python: argparse; Megatron-Core's parser"),
        shown="megatron_drops_flags",
    ),
    "overridden-flag": _convention(
        "a flag that another one overrides",
        ("refused", "the argv is refused", "this suite's naming rules"),
        ("warned", "rank 0 is warned, in words that name it", "Megatron-Core: validate_args, warn_rank_0"),
        shown="megatron_drops_flags",
    ),
    "empty-pattern": _convention(
        "a hybrid pattern without a letter",
        ("refused", "it is refused", "this suite's naming rules"),
        ("no-layers", "it is a model without layers", "Megatron-Core: hybrid_layer_allocation.parse_hybrid_pattern"),
        shown="megatron_empty_stage",
    ),
}
"""Name → convention. A contract that follows one names it in `conventions`."""


def conventions_of(party: object) -> dict[str, str]:
    """Every convention with the choice of a party, declared or not.

    Raises:
        Refused: for a name or a choice that there is not, all at once.
    """
    declared = getattr(party, "conventions", None) or {}
    found = Refusals()
    if not isinstance(declared, Mapping):
        found.add("conventions", declared, "is no mapping", "give the name of a choice for the name of a convention")
        found.raise_any()
    for name, choice in declared.items():
        known = CONVENTIONS.get(name)
        if known is None:
            found.add("conventions", name, "is no convention", f"the conventions are {', '.join(CONVENTIONS)}")
        elif choice not in known.names:
            found.add(f"conventions[{name}]", choice, "is no choice", f"the choices are {', '.join(known.names)}")
    found.raise_any()
    return {name: declared.get(name, known.default) for name, known in CONVENTIONS.items()}


def declared_by(party: object) -> dict[str, str]:
    """The choices of a party that are not the first ones."""
    return {name: choice for name, choice in conventions_of(party).items() if choice != CONVENTIONS[name].default}


def chosen(stack: object, name: str) -> str:
    """The choice that a check has to follow. The stack on the stand knows the conventions that its contract names."""
    choice: str = stack.conventions[name]  # type: ignore[attr-defined]  # questions are the protocols' only attributes
    return choice
