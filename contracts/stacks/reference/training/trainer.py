"""The trainer. An optimizer step is a window of microbatches, one clip, one update, one update of the router biases.

The denominators of all means are counted over the whole window before the first backward pass, so that every label has
the same weight, whatever its microbatch. `python -m contracts.stacks.reference.train` and the questions about training
both run this.

B sequences · T tokens · E experts
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from contracts.spec import Degrees, Execution, NotOffered, Recipe, Refusals, refuse
from contracts.stacks.kit.roles import layer_of
from contracts.stacks.reference.checkpoint import rng_state
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State, recipe_digest
from contracts.stacks.reference.checkpoint.manifest import Manifest
from contracts.stacks.reference.data import IGNORED, Corpus, DataOrder
from contracts.stacks.reference.model.blocks import fp8
from contracts.stacks.reference.model.blocks.common import packing
from contracts.stacks.reference.model.build import build_model
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.model.mtp import shift_left
from contracts.stacks.reference.model.parts import PARTS, Parts
from contracts.stacks.reference.optim import schedule
from contracts.stacks.reference.optim.optimizer import Optimizer, members
from contracts.stacks.reference.parallel.placements import local_part, placed_copy, placed_zeros

GENERATORS, OWN = "rng/", "own/"  # prefixes of tensors in a checkpoint that belong to one rank
LAYOUT, FROZEN = "layout.", "frozen."  # prefixes of the counters that describe the ranks, and what was not trained
FIRST_SCALE, GROWS_AFTER = 2.0**16, 2000  # torch.amp.GradScaler's
Value = TypeVar("Value")


class Batch(NamedTuple):
    """Packed sequences: tokens, labels (-100 where none counts) and documents, each (B, T) int64."""

    tokens_BT: Tensor
    labels_BT: Tensor
    documents_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step; `gradients` are clones from before clipping, if they were wanted."""

    number: int
    losses: dict[str, float]
    tokens: int
    lr: float
    grad_norm: float
    clip_coef: float
    samples: tuple[int, ...] = ()
    gradients: dict[str, Tensor] = field(default_factory=dict)
    seen: dict[str, Tensor] = field(default_factory=dict)
    skipped: bool = False
    own: tuple[Tensor, Tensor, Tensor] | None = None
    """This rank's sum of losses and its labels, and the labels of all ranks."""


class Trainer:
    """A model, its optimizer and its place in the data, on one rank.

    `number` is the last optimizer step taken, `consumed` the number of sequences consumed by all steps. Under fp16 the
    loss is multiplied by `scale` before the backward pass: a step that overflows is left out and halves it, and it
    doubles behind GROWS_AFTER steps of which none did; `finite` counts them.
    """

    optimizer_class: type[Optimizer] = Optimizer
    corpus_class: type[Corpus] = Corpus
    data_order_class: type[DataOrder] = DataOrder
    rate: Callable[..., float] = staticmethod(schedule.learning_rate)
    decay: Callable[..., float | None] = staticmethod(schedule.weight_decay)
    rates: Mapping[str, float] = {}
    """The factors of rates, if they are not 1."""
    frozen: frozenset[str] = frozenset()

    def __init__(self, recipe: Recipe, execution: Execution | None = None, parts: Parts = PARTS) -> None:
        self.recipe, self.execution, self.parts = recipe, execution or Execution(), parts
        self.refuse_unsupported()
        self.model = self.build()
        self.optimizer = self.optimizer_of_members()
        self.corpus = self.opened()
        self.data_order = self.data_order_class(len(self.corpus), recipe.seed)
        self.number = 0
        self.consumed = 0
        self.scale = FIRST_SCALE if recipe.dtype == "fp16" else 1.0
        self.finite = 0
        if recipe.dropout:
            rng_state.seed_rank_stream(recipe.seed, 0, self.stream())

    def optimizer_of_members(self) -> Optimizer:
        return self.optimizer_class(self.recipe.optim, members(self.model), self.rates)

    def choose(self, rates: Mapping[str, float], frozen: frozenset[str]) -> None:
        """Give some parameters and selection biases a rate of their own, and freeze others, before the first step."""
        self.rates, self.frozen = rates, frozen
        for name, parameter in self.model.named_parameters():
            if name in frozen:
                parameter.requires_grad_(False)
        self.optimizer = self.optimizer_of_members()

    def build(self) -> Model:
        """The model with its initial weights, in the precision of the execution."""
        return build_model(self.recipe, self.execution, self.parts)

    def opened(self) -> Corpus:
        """The data of the run."""
        return self.corpus_class(self.recipe)

    # a step
    def next(self, wanted: bool = False) -> StepResult:
        """A step over the next sequences of the data; `wanted` says whether to return its gradients."""
        ids = self.data_order.ids(self.consumed, self.recipe.batch.total)
        done = self.step(self.batch(ids), wanted, ids)
        self.consumed += len(ids)
        return done

    def batch(self, ids: Sequence[int]) -> Batch:
        return Batch(*(torch.cat(rows) for rows in zip(*map(self.corpus.sequence, ids), strict=True)))

    def step(self, batch: Batch, wanted: bool = False, samples: tuple[int, ...] = ()) -> StepResult:
        """One optimizer step over a whole batch."""
        return self.step_over(self.cut(batch), wanted, samples)

    def step_over(self, window: Sequence[Batch], wanted: bool = False, samples: tuple[int, ...] = ()) -> StepResult:
        """One optimizer step over microbatches, which may differ in sequences and in length."""
        window = [self.on_device(micro) for micro in window]
        own = self.total([self.count(micro) for micro in window])
        counts = self.over_rows(own)
        self.optimizer.zero()
        passes = self.passes(window, counts)
        self.reduce()
        self.unscale()
        sums = self.total([each.sums for each in passes])
        losses = self.model.objective(self.over_parts(sums), counts)
        gradients = self.gradients() if wanted else {}
        norm, coefficient = self.optimizer.clip()
        lr = self.rate(self.recipe.optim, self.number + 1)
        seen = self.over_parts(self.total([_counters(each.seen) for each in passes]))
        taken = self.follow(norm)
        if taken:
            decay = self.decay(self.recipe.optim, self.number + 1)
            if decay is not None:
                self.optimizer.set_decay(decay)
            self.optimizer.step(lr)
            fp8.advance_scales(self.model)
            self.move_biases(seen)
        if self.recipe.dtype == "fp16":
            seen["loss_scale"] = torch.tensor(self.scale)
        self.number += 1
        return StepResult(
            number=self.number,
            losses={name: float(loss) for name, loss in losses.items()},
            tokens=int(counts["lm"]),
            lr=lr,
            grad_norm=norm,
            clip_coef=coefficient,
            samples=samples,
            gradients=gradients,
            seen=seen,
            skipped=not taken,
            own=(sums.get("lm", torch.zeros(())), own["lm"], counts["lm"]),
        )

    def unscale(self) -> None:
        """Take the loss scale out of the gradients."""
        for parameter in self.model.parameters():
            if parameter.grad is not None and self.scale != 1:
                local_part(parameter.grad).div_(self.scale)

    def follow(self, norm: float) -> bool:
        """Whether to take a step with gradients of this norm; the loss scale follows it."""
        if self.recipe.dtype != "fp16":
            return True
        overflown = not math.isfinite(norm)
        self.finite = 0 if overflown else self.finite + 1
        if overflown:
            self.scale = max(self.scale / 2, 1.0)
        elif self.finite % GROWS_AFTER == 0:
            self.scale *= 2
        return not overflown

    @torch.no_grad()
    def validate(self, batches: Sequence[Batch]) -> float:
        """The mean loss over the labels of other batches. The run continues as if there had been none."""
        mode = self.model.training
        self.model.eval()
        try:
            batches = [self.on_device(each) for each in batches]
            counts = self.over_rows(self.total([self.count(each) for each in batches]))
            sums = self.over_parts(self.total([{"lm": self.model(*each).sums["lm"]} for each in batches]))
        finally:
            self.model.train(mode)
        return float(sums["lm"] / counts["lm"].clamp(min=1))

    def on_device(self, batch: Batch) -> Batch:
        """A batch on the device of the execution."""
        return Batch(*(None if each is None else each.to(self.execution.device) for each in batch))  # type: ignore[arg-type]

    # overridden for several ranks (parallel_trainer.py)
    def refuse_unsupported(self) -> None:
        """Refuse an execution that this trainer does not support."""
        execution = self.execution
        if execution.world > 1 or execution.degrees != Degrees() or execution.fsdp or execution.compile != "none":
            raise NotOffered("this trainer runs on one rank and uncompiled")

    def share(self, batch: Batch) -> Batch:
        """This rank's rows of a whole batch."""
        return batch

    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sum, over ranks with different rows, of counts over each rank's rows."""
        return counts

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sum, over all ranks with different tokens, of values over each rank's tokens."""
        return values

    def largest(self, total: Tensor, labels: Tensor, whole: Tensor) -> float | None:
        """The largest mean loss of a rank, from this one's sum and its labels, and those of all; None on one rank."""
        return None

    def reduce(self) -> None:
        """Reduce the gradients of the window over ranks."""

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Full tensors by name, on every rank."""
        return dict(tensors)

    def close(self) -> None:
        """Release the process groups of the run."""

    def abandon(self) -> None:
        """`close` for a run that failed. It waits for no other rank, since none may come."""

    def cut(self, batch: Batch) -> list[Batch]:
        """The microbatches: consecutive sequences, in numbers that differ by one at most."""
        parts, rows = self.execution.microbatches, len(batch.tokens_BT)
        if not 0 < parts <= rows:
            raise refuse("microbatches", parts, f"must lie in 1 … {rows}, the sequences of the batch", "cut fewer")
        cut = [[None] * parts if each is None else torch.tensor_split(each, parts) for each in batch]
        return [Batch(*each) for each in zip(*cut, strict=True)]

    def count(self, micro: Batch) -> dict[str, Tensor]:
        """The denominators of this microbatch's losses, by the model's names."""
        pack = packing(micro.tokens_BT, micro.documents_BT)
        found = {"lm": (micro.labels_BT != IGNORED).sum()}
        for depth in range(self.recipe.mtp.depth if self.recipe.mtp else 0):
            found[f"mtp.{depth}"] = (shift_left(micro.labels_BT, pack, depth + 1, IGNORED) != IGNORED).sum()
        rows, length = micro.tokens_BT.shape
        sizes = {"aux": rows, "z": rows * length}
        return found | {name: found["lm"].new_tensor(size) for name, size in sizes.items()}

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        """Forward and backward over the whole window."""
        return [self.accumulate(micro, counts) for micro in window]

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        """Forward and backward over one microbatch, with the denominators of the window."""
        out: ModelOutput = self.model(*micro)
        total = self.model.objective(out.sums, counts)["total"]
        (total if self.scale == 1 else total * self.scale).backward()  # type: ignore[no-untyped-call]  # torch's
        nothing = out.logits_BTV.new_empty(0)
        return out._replace(
            logits_BTV=nothing, mtp_logits=(), sums={name: each.detach() for name, each in out.sums.items()}
        )

    def total(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The sum over microbatches, by name."""
        found: dict[str, Tensor] = {}
        for part in parts:
            for name, value in part.items():
                found[name] = found[name] + value if name in found else value
        return found

    def gradients(self) -> dict[str, Tensor]:
        """The current gradients by name; zeros for a parameter without one."""
        held = {
            name: placed_zeros(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        return {name: grad.clone() for name, grad in self.whole(held).items()}  # clipping works in place

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        """Update every router's selection bias by the counts of the whole window."""
        for name, bias_E in self.model.named_buffers():
            layer = layer_of(name)
            if name.endswith("router.bias") and layer is not None and self.recipe.moe is not None:
                rate = self.recipe.moe.bias_rate * self.rates.get(name, 1.0)
                self.parts.moe.update_bias(bias_E, seen[f"layers.{layer}.counts"], rate)

    # the contents of a checkpoint
    def state(self) -> dict[str, Tensor]:
        """Weights, buffers and optimizer state by `weights/…`, `buffers/…`, `optimizer/…`; not copied."""
        held = {f"weights/{name}": each.detach() for name, each in self.model.named_parameters()}
        held |= {f"buffers/{name}": each for name, each in self.model.named_buffers()}
        return held | {f"optimizer/{name}": each for name, each in self.optimizer.state().items()}

    def position(self) -> dict[str, int]:
        found = {"step": self.number, "consumed": self.consumed, "seed": self.recipe.seed}
        if self.recipe.dtype == "fp16":
            found |= {"loss_scale": int(self.scale), "finite": self.finite}
        return found | {f"{FROZEN}{name}": 1 for name in self.frozen}

    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        """Load what `state` and `position` returned.

        Raises:
            Refused: for an extra or missing tensor, and for another seed.
        """
        if position["seed"] != self.recipe.seed:
            remedy = "resume under the recipe that was saved"
            raise refuse("seed", self.recipe.seed, f"the saved run has {position['seed']}", remedy)
        self.put(_under("weights/", state), dict(self.model.named_parameters()), "weights")
        self.put(_under("buffers/", state), dict(self.model.named_buffers()), "buffers")
        moments = {
            name: placed_copy(each)
            for name, each in _under("optimizer/", state).items()
            if name.rpartition("/")[0] not in self.frozen
        }
        self.optimizer.new = _under(FROZEN, position)
        self.optimizer.load(moments)
        self.number, self.consumed = position["step"], position["consumed"]
        self.scale, self.finite = float(position.get("loss_scale", self.scale)), position.get("finite", 0)

    def kept(self, folder: str) -> Checkpoints:
        """The checkpoints of a folder, as this trainer writes and reads them."""
        return self.parts.checkpoints(folder, alone=True, of_ranks=(GENERATORS, OWN))

    def save(self, folder: str) -> None:
        """Write a checkpoint of this step, the random generators included."""
        self.kept(folder).save(self.saved())

    def retire(self, folder: str, keep: int, durable: str | None = None) -> None:
        """Remove checkpoints older than the newest `keep`, each only if a newer one is on durable storage.

        Args:
            durable: the folder of the copies on durable storage; None if `folder` itself is durable.
        """
        arrived = None if durable is None else self.arrived(folder, durable)
        self.kept(folder).retire(keep, arrived)

    def arrived(self, folder: str, durable: str) -> frozenset[int]:
        """The steps with a complete copy in another folder, of the same save."""
        return self.kept(durable).copies_of(self.kept(folder))

    def saved(self) -> State:
        """What a checkpoint holds: the same names after every step, also where all so far overflowed."""
        held = self.state()
        if self.number and not any(name.startswith("optimizer/") for name in held):
            held |= {f"optimizer/{name}": each for name, each in self.optimizer.blank().items()}
        drawn = rng_state.capture(self.execution.device)
        generators = {f"{self.own_generators}{name}": each for name, each in drawn.items()}
        place = {f"{LAYOUT}{name}": size for name, size in self.layout().items()}
        digest = recipe_digest(self.recipe)
        return State(
            step=self.number, tensors=held | generators, position=self.position() | place, recipe=digest
        )  # fmt: skip

    def layout(self) -> dict[str, int]:
        """The layout of the state over ranks and devices; empty on one rank and the CPU."""
        return {} if self.execution.device == "cpu" else {"device": 1}

    @property
    def own_generators(self) -> str:
        """The prefix of the names of this rank's generators."""
        return f"{GENERATORS}0/"

    def stream(self) -> str:
        """Whose random numbers this rank draws: ranks that hold the same activations drop the same elements of them."""
        return ""

    def resume(self, folder: str) -> None:
        """Resume from the latest checkpoint of a folder, whatever the layout of the ranks that saved it.

        On the same layout the random generators continue. On another layout no saved generator fits, so each rank gets
        a new one, derived from seed, step and `stream`.

        Raises:
            Refused: when there is no checkpoint, or it has another recipe.
        """
        kept = self.kept(folder)
        saved = kept.opened()
        same = _under(LAYOUT, saved.position) == self.layout()
        target = {
            name: placed_copy(each) for name, each in (self.moments_in(saved) | dict(self.saved().tensors)).items()
        }
        if not same:
            self.refuse_own(saved.tensors)
            target = {name: each for name, each in target.items() if not name.startswith(GENERATORS)}
        loaded = kept.load(target, recipe=recipe_digest(self.recipe), step=saved.step)
        self.load(target, loaded.position)
        if same:
            self.restore_generators(_under(self.own_generators, target))  # last: building and loading may draw
        else:
            rng_state.seed_rank_stream(self.recipe.seed, self.number, self.stream())

    def moments_in(self, saved: Manifest) -> dict[str, Tensor]:
        """The optimizer state that a checkpoint has: of what was trained then, whether it is now or not."""
        before = _under(FROZEN, saved.position)
        found = {
            f"optimizer/{name}": each
            for name, each in self.optimizer.blank().items()
            if name.rpartition("/")[0] not in before
        }
        for name in self.frozen:
            for key, held in saved.tensors.items():
                if key.rpartition("/")[0] == f"optimizer/{name}":
                    found[key] = torch.zeros(held.shape, dtype=getattr(torch, held.dtype))
        return found

    def refuse_own(self, names: Iterable[str]) -> None:
        """Refuse state that other ranks saved each for itself, and that no layout can share."""
        found = Refusals()
        for name in sorted({name.removeprefix(OWN).partition("/")[2] for name in names if name.startswith(OWN)}):
            found.add(name, "of each rank", "cannot be brought onto other ranks", "resume on the layout that saved it")
        found.raise_any()

    def restore_generators(self, states: Mapping[str, Tensor]) -> None:
        rng_state.restore(states)

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        """Copy values into the tensors of the same names.

        Raises:
            Refused: when a name or a shape differs.
        """
        strange = sorted(set(values) ^ set(into))
        if strange:
            raise refuse(what, strange, "are on one side only", "give the tensors of this recipe, each once")
        for name, held in into.items():
            if held.shape != values[name].shape:
                problem = f"has shape {tuple(values[name].shape)}, the model {tuple(held.shape)}"
                raise refuse(what, name, problem, "give the tensors of this recipe")
            self.take(values[name], held)

    def take(self, value: Tensor, into: Tensor) -> None:
        """Copy this rank's part of a full tensor into its tensor."""
        into.copy_(value)


def _under(prefix: str, state: Mapping[str, Value]) -> dict[str, Value]:
    return {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}


def _counters(seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a pass's `seen` that are summed: assignments by expert, and dropped assignments."""
    found = {name: each for name, each in seen.items() if name.endswith(".counts")}
    dropped = [each.sum() for name, each in seen.items() if name.endswith(".dropped")]
    return found | ({"dropped": torch.stack(dropped).sum()} if dropped else {})
