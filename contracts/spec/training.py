"""What is asked of a whole model and of its training: what was built, one pass, and a run of steps.

A run is a value too: batches or a seed go in; losses, gradients, weights and state by name come out, so that two runs
of one stack (tp 2 against tp 1, compiled against eager, resumed against uninterrupted) compare name by name. Names of
parameters are the stack's own. Inside a world of several ranks every rank asks the same, and every rank is answered
with the whole tensors.

A step, where the recipe leaves it open:

- Its objective is lm + mtp.loss_weight · mtp + aux_loss · aux + z_loss · z, each the mean over the whole batch of the
  step however it is cut: lm and mtp over labels that count, aux over sequences and z over tokens, both summed over
  layers. Parameters, gradients and optimizer state are float32; state is there after the first step.
- The rate of step s = 1, 2, … is lr · s / warmup up to s = warmup, and then, with u = (s - warmup) / (steps - warmup),
  min_lr + (lr - min_lr) · (1 + cos πu) / 2 (cosine) or min_lr + (lr - min_lr) · (1 - u) (linear). `constant` stays at
  lr; `WSD` does, and falls linearly over the last fifth of the steps. min_lr is met at s = steps and kept.
- Gradients are multiplied by min(1, clip / (norm + 1e-6)), all by one number; clip 0 means never.
- AdamW (arXiv 1711.05101) corrects its bias, adds 1e-8 to the root, and its decay is decoupled: a weight loses
  lr · weight_decay of itself. Norms, biases, A_log, D and dt_bias do not decay; matrices do.
- Muon takes the matrices and experts of the layers, an expert at a time, and no embedding, output projection, router or
  prediction head: Nesterov momentum 0.95, five steps of Jordan's quintic Newton-Schulz iteration, step
  lr · 0.2 · sqrt(max(out, in)) (arXiv 2502.16982), decay as above.
- A router's selection bias moves once a step, by the step's summed counts.
- Sequences come in an order that the seed fixes, each once an epoch; a step takes the next `batch.total`, and the ranks
  in their order share them. A label is the token behind its position, -100 where that is another document's.
- Of a file (`data.path`) each byte is a token, modulo the vocabulary, and a blank line ends a document. Sequence i has
  the tokens from i · seq_length on; there are (bytes - 1) // seq_length of them.
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
"""What is put around a model to spread it over ranks."""
Observed = Literal["gradients", "weights", "optimizer", "buffers", "rng"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One row of the optimizer's table: a parameter, and who moves it how.

    Args:
        layer: 0-based; None outside the layers.
        dtype: the dtype it is held in; `compute` the one it takes part in a step with.
        optimizer: the rule that moves it; None for one that is frozen.
        lr_scale: its learning rate over the schedule's.
        placement: how each mesh axis holds it, by axis name; empty on one rank.
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
    """One layer of the model as it stands in memory, read off the model and not off the recipe.

    `features` are the witnesses found in it: `gqa`, `mla`, `dsa`, `qk_norm`, `rope`, `moe`, `shared_expert`,
    `selection_bias`, `relu2`, `swiglu`, `mhc`, `mamba2`, `mamba3`, `m2rnn`.
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
        labels: (B, T) int64, the token each position is to predict; -100 where none counts.
        documents: (B, T) int64, the document of each token, rising along T; None means one a row.
    """

    tokens: Array
    labels: Array
    documents: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a step is carried out. It may change the time and the memory of a run, and nothing else.

    Args:
        world: ranks that the run is spread over; 1 is this process by itself, whatever world it lives in.
        fsdp: whether parameters are sharded over data-parallel ranks, in `replicas` copies; else each holds them whole.
        compile: which regions are compiled: none, each block, or the whole model.
        backend: the compiler behind it.
        recompute: whether blocks are recomputed in the backward pass.
        microbatches: parts into which one rank's sequences are cut.
        precision: `declared` follows the recipe; otherwise weights, activations and state in that dtype.
        schedule: of the pipeline.
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


@dataclass(frozen=True, kw_only=True)
class Session:
    """A run of training steps.

    Args:
        steps: how many steps are taken; the first is `start + 1`, where `start` is what was loaded.
        batches: one for each step; empty means the stack's own data under the recipe's seed.
        windows: in place of batches, the microbatches of each step, as many as the execution has. They may differ in
            sequences and in length; data-parallel ranks share each of them as they share a batch.
        weights: whole tensors by name, in place of the initial ones; empty means initial ones by the recipe's seed.
        buffers: likewise, for buffers such as the selection bias of a router.
        observe: what is wanted of each step beside losses; `at` narrows it to these steps (1-based, all if empty). 0
            among them asks for the state as it was loaded, before the first step.
        save: folder of checkpoints; `save_at` the steps after which one is written.
        keep: how many of the newest stay when one was written; None keeps all.
        durable: folder to which somebody copies the checkpoints of `save`. None goes that has no newer one which has
            arrived there whole. Where it is not named, `save` is the place that lasts.
        load: folder whose latest checkpoint is loaded before the first step.
    """

    recipe: Recipe
    steps: int
    execution: Execution = field(default_factory=Execution)
    batches: tuple[Tokens, ...] = ()
    windows: tuple[tuple[Tokens, ...], ...] = ()
    weights: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    observe: frozenset[Observed] = frozenset()
    at: frozenset[int] = frozenset()
    save: str | None = None
    save_at: frozenset[int] = frozenset()
    keep: int | None = None
    durable: str | None = None
    load: str | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one optimizer step did.

    Args:
        number: 1-based and counted over the whole run, resumed or not.
        losses: `lm` (mean over valid labels), `aux`, `z`, `mtp` before their weights, `total` with them. NaN is an
            answer, as it is of the norm: a run that diverged is judged by its numbers.
        tokens: labels that counted.
        grad_norm: global, over every parameter, before clipping; `clip_coef` what gradients were multiplied by.
        samples: ids of the sequences consumed, in order; empty when batches were given.
        gradients: whole, by name, before clipping. weights, buffers, optimizer: after the step; the optimizer's keys
            are `name/entry`, for instance `layers.0.mixer.wq.weight/exp_avg`.
        rng: states of the random generators after the step, by name.
        seen: counters, for instance `dropped`, `layers.3.counts`.
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


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that came to its end.

    Args:
        start: the step it began after: 0, or that of the loaded checkpoint.
        loaded: the state at `start` where a checkpoint was loaded and `at` asks for it: no losses, no tokens.
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
    """A whole model and how it is trained."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        """The model that a recipe becomes, at its true size and without its memory (meta device)."""
        ...

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        """The initial weights by name, whole, as a run with the recipe's seed starts from them."""
        ...

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        """One pass over one batch with the given weights; empty ones are the initial ones."""
        ...

    def train(self, session: Session) -> Trained:
        """A run of optimizer steps."""
        ...

    def samples(self, recipe: Recipe, step: int, rank: int, dp: int) -> tuple[int, ...]:
        """The ids of the sequences that one data-parallel rank of `dp` consumes in a step (1-based)."""
        ...

    def sample(self, recipe: Recipe, id: int) -> Tokens:
        """One sequence of the stack's own data, (1, T)."""
        ...
