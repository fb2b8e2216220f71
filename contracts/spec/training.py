"""Questions about a whole model and its training: what was built, one pass, and a run of steps.

A run is a value: batches or a seed go in; losses, gradients, weights and state by name come out. So two runs of one
stack (tp 2 and tp 1, compiled and eager, resumed and uninterrupted) compare name by name. Parameter names are the
stack's own. In a world of several ranks every rank asks the same question, and every rank gets the full tensors.

If the recipe leaves it open, a step does this:

- Its objective is lm + mtp.loss_weight · mtp + aux_loss · aux + z_loss · z. Each is a mean over the whole batch of the
  step, however the batch is cut: lm and mtp over labels that count, aux over sequences and z over tokens, both summed
  over layers. Parameters, gradients and optimizer state are float32; optimizer state exists after the first step.
- The rate of step s = 1, 2, … is lr · s / warmup up to s = warmup, and then, with u = (s - warmup) / (steps - warmup),
  min_lr + (lr - min_lr) · (1 + cos πu) / 2 (cosine) or min_lr + (lr - min_lr) · (1 - u) (linear). `constant` stays at
  lr; `WSD` does, and falls linearly over the last fifth of the steps. min_lr is met at s = steps and kept.
- Gradients are multiplied by min(1, clip / (norm + 1e-6)), all by one number; clip 0 means never.
- AdamW (arXiv 1711.05101) corrects its bias and adds 1e-8 to the root. Its decay is decoupled: a weight loses
  lr · weight_decay of itself. Norms, biases, A_log, D and dt_bias do not decay; matrices do. If the recipe has an
  end_weight_decay, the decay of step s is weight_decay + (end_weight_decay - weight_decay) · min(1, s / steps).
- Muon updates the matrices and experts of the layers, each expert as a matrix of its own. It does not update the
  embedding, output projection, routers or prediction heads. Nesterov momentum 0.95, five steps of Jordan's quintic
  Newton-Schulz iteration, step lr · 0.2 · sqrt(max(out, in)) (arXiv 2502.16982), decay as above.
- Under fp16 the loss is multiplied by a scale, 2^16 at first, before the backward pass, and the gradients are divided
  by it. A step whose gradients are not finite is counted and moves nothing; the scale falls, and rises after many
  finite steps.
- A router's selection bias moves once a step, by the counts summed over the step.
- The seed fixes the order of sequences; each occurs once an epoch. A step takes the next `batch.total` sequences, and
  the ranks share them in rank order. A label is the next token, or -100 where that belongs to another document.
- In a data file (`data.path`) each byte is a token, modulo the vocabulary, and a blank line ends a document. Sequence i
  begins at token i · seq_length; there are (bytes - 1) // seq_length sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.array import Array, Arrays, Element
from contracts.spec.codec import Real
from contracts.spec.party import Party
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Degrees, Layout

Role = Literal["embedding", "head", "matrix", "expert", "router", "norm", "bias", "conv", "ssm", "mixing"]
"""What a parameter is for. `ssm` are A_log, D and dt_bias; `mixing` the vectors and maps of hyper-connections."""
Rule = Literal["adamw", "muon"]
Precision = Literal["declared", "float32", "float64"]
Wrap = Literal[
    "tensor_parallel", "expert_parallel", "context_parallel", "activation_checkpoint", "compile", "fully_shard"
]
"""What a stack wraps around a model: sharding, recomputation, compilation."""
Observed = Literal["gradients", "weights", "optimizer", "buffers", "rng", "largest"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One row of the optimizer's table: a parameter and how it is updated.

    Args:
        layer: 0-based; None outside the layers.
        dtype: the dtype in which it is stored; `compute` is the dtype in which a step uses it.
        optimizer: the rule that updates it; None for a frozen parameter.
        weight_decay: that of the recipe's `weight_decay`, whatever a schedule of it adds.
        lr_scale: its learning rate divided by the schedule's.
        placement: mesh axis → how the axis holds it (sharded or replicated); empty on one rank.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Element
    compute: Element
    role: Role
    layer: int | None
    optimizer: Rule | None
    weight_decay: float
    lr_scale: float = 1.0
    state: Mapping[str, Element] = field(default_factory=dict)
    placement: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BuiltLayer:
    """One layer of the model, read off the built model and not off the recipe.

    `features` are those found in it: `gqa`, `mla`, `dsa`, `qk_norm`, `rope`, `moe`, `shared_expert`, `selection_bias`,
    `relu2`, `swiglu`, `mhc`, `parallel_ssm`, `mamba2`, `mamba3`, `m2rnn`.
    """

    number: int
    family: str
    features: frozenset[str]
    parameters: int


@dataclass(frozen=True, kw_only=True)
class Built:
    """The model that a recipe becomes: layers in order, and every parameter once.

    `features` are those outside the layers: `untied_embeddings`, `tied_embeddings`, `mtp`.
    """

    layers: tuple[BuiltLayer, ...]
    parameters: tuple[Parameter, ...]
    features: frozenset[str]
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One global batch: every sequence of one optimizer step.

    Args:
        tokens: (B, T) int64.
        labels: (B, T) int64, the token that each position predicts; -100 where no label counts.
        documents: (B, T) int64, the document of each token, rising along T; None means one a row.
    """

    tokens: Array
    labels: Array
    documents: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a step is carried out. It may change the time and the memory of a run, and nothing else.

    Args:
        world: ranks of the run; 1 is this process by itself, whatever world it belongs to.
        fsdp: whether parameters are sharded over data-parallel ranks, in `replicas` copies; otherwise every rank holds
            full parameters.
        compile: which regions are compiled: none, each block, or the whole model.
        backend: the backend of the compiler.
        recompute: whether blocks are recomputed in the backward pass.
        microbatches: number of microbatches into which one rank's sequences are cut.
        precision: `declared` follows the recipe; otherwise weights, activations and state have that dtype.
        schedule: the pipeline schedule.
        device: where the tensors of a step are, in torch's names: `cpu`, `cuda`. On `cuda` each rank uses its own
            device. The tensors of an answer are on the host.
    """

    mode: Mode = "nemo_native"
    degrees: Degrees = field(default_factory=Degrees)
    layout: Layout = "own-axis"
    world: int = 1
    fsdp: bool = False
    replicas: int = 1
    compile: Literal["none", "blocks", "model"] = "none"
    backend: Literal["eager", "aot_eager", "inductor"] = "aot_eager"
    recompute: bool = False
    microbatches: int = 1
    precision: Precision = "declared"
    schedule: Literal["1f1b", "interleaved"] = "1f1b"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Session:
    """A run of training steps.

    Args:
        steps: number of steps to take; the first is `start + 1`, where `start` is the step of the loaded checkpoint.
        batches: one for each step; empty means the stack's own data under the recipe's seed.
        windows: instead of batches, the microbatches of each step, as many as the execution has. They may differ in
            number and length of sequences; data-parallel ranks share each of them as they share a batch.
        weights: full tensors by name; empty means the initial weights under the recipe's seed.
        buffers: likewise, for buffers such as the selection bias of a router.
        observe: what to return of each step besides losses; `at` narrows it to these steps (1-based, all if empty). A 0
            in `at` asks for the loaded state, before the first step.
        save: folder of checkpoints; `save_at` names the steps after which one is written.
        frozen: names of parameters that the run does not train. They keep their values and have no gradient and no
            optimizer state; the norm, the clipping and decay are of the others. A checkpoint has their values. A run
            that loads it may freeze others: what was frozen begins as in a first step, what is frozen loses its state.
        rates: by name of a parameter or a selection bias, what its rate is multiplied by, floor included; 1 for
            all others.
        keep: how many of the newest checkpoints to retain; None retains all.
        durable: folder to which another process copies the checkpoints of `save`. A checkpoint may be removed only when
            a newer one has been copied there completely. None: `save` itself is durable.
        load: folder whose latest checkpoint is loaded before the first step.
        validation: other batches, over which the stack's own validation runs after each of the steps `validate_at`. A
            step's state is observed after its validation.
    """

    recipe: Recipe
    steps: int
    execution: Execution = field(default_factory=Execution)
    batches: tuple[Tokens, ...] = ()
    windows: tuple[tuple[Tokens, ...], ...] = ()
    weights: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    rates: Mapping[str, float] = field(default_factory=dict)
    observe: frozenset[Observed] = frozenset()
    at: frozenset[int] = frozenset()
    save: str | None = None
    save_at: frozenset[int] = frozenset()
    keep: int | None = None
    durable: str | None = None
    load: str | None = None
    validation: tuple[Tokens, ...] = ()
    validate_at: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one optimizer step did.

    Args:
        number: 1-based and counted over the whole run, resumed or not.
        losses: `lm` (mean over valid labels), `aux`, `z`, `mtp` before their weights, `total` with them. NaN is a legal
            answer, here and in `grad_norm`: a run that diverged is judged by its numbers.
        tokens: number of labels that counted.
        grad_norm: global norm over every parameter, before clipping; `clip_coef` is the factor of the clipping.
        samples: ids of the sequences consumed, in order; empty when batches were given.
        gradients: full tensors by name, before clipping. weights, buffers, optimizer: after the step; the optimizer's
            keys are `name/entry`, for instance `layers.0.mixer.wq.weight/exp_avg`.
        rng: states of the random generators after the step, by name.
        seen: counters, for instance `dropped`, `layers.3.counts`; under fp16 `loss_scale`, the one of the next step.
        largest: the largest of the ranks' mean losses, each over the labels of its rows, as a log has it.
        validation: the loss of the validation after the step, a mean over its labels that count.
    """

    number: int
    losses: Mapping[str, Real]
    tokens: int
    lr: float
    grad_norm: Real
    clip_coef: Real
    samples: tuple[int, ...] = ()
    gradients: Arrays = field(default_factory=dict)
    weights: Arrays = field(default_factory=dict)
    optimizer: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    rng: Arrays = field(default_factory=dict)
    seen: Arrays = field(default_factory=dict)
    largest: Real | None = None
    validation: Real | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that ended normally.

    Args:
        start: the step before its first: 0, or the step of the loaded checkpoint.
        loaded: the state at `start`, if a checkpoint was loaded and `at` asks for it. It has no losses and no tokens.
    """

    start: int
    steps: tuple[Step, ...]
    loaded: Step | None = None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward pass through the whole model and, if asked, one backward pass.

    Args:
        logits: (B, T, vocab). mtp_logits: one of that shape for each MTP depth.
        losses: as in `Step`. gradients: of `total`, by name.
        seen: counters of the pass, for instance `layers.3.counts`.
    """

    logits: Array
    losses: Mapping[str, Real]
    mtp_logits: tuple[Array, ...] = ()
    gradients: Arrays = field(default_factory=dict)
    seen: Arrays = field(default_factory=dict)


class Training(Party, Protocol):
    """A whole model and how it is trained. `contracts/spec/training.py` defines what one step computes."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        """The model of a recipe, built at its true size on the meta device: layers, parameters, optimizer rules.

        Raises `NotOffered` for a recipe that the stack has no model for.
        """
        ...

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        """The initial weights of a run with the recipe's seed: full tensors by name."""
        ...

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        """One forward pass over one batch, and one backward pass if `backward` is set.

        `weights` are full tensors by name; empty means the initial weights.
        """
        ...

    def train(self, session: Session) -> Trained:
        """A run of optimizer steps.

        Raises `Refused` for a name or shape that the model does not have, for batches that do not number the steps,
        and for microbatches that the execution cannot run; `NotOffered` for a recipe or an execution that the stack
        does not have.
        """
        ...

    def samples(self, recipe: Recipe, step: int, rank: int, dp: int) -> tuple[int, ...]:
        """The ids of the sequences that data-parallel rank `rank` of `dp` consumes in a step (1-based).

        Raises `Refused` for a step below 1, a rank outside `dp`, and a `dp` that does not divide the batch.
        """
        ...

    def sample(self, recipe: Recipe, id: int) -> Tokens:
        """One sequence of the stack's own data, (1, T)."""
        ...
