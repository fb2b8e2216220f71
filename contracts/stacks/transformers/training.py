"""Whole models: what transformers builds from a recipe, and runs of its own `Trainer`, observed."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint

from contracts.instruments import numerics
from contracts.instruments.ranks import gathered
from contracts.spec import Array, Arrays, Built, Execution, Mode, Pass, Recipe, Session, Step, Tokens, Trained, refuse
from contracts.stacks.kit import runs, tables
from contracts.stacks.kit.exact_kernels import exact_kernels
from contracts.stacks.kit.links import fitting, freeze, to_canonical
from contracts.stacks.kit.versions import fitted
from contracts.stacks.transformers import releases, shims, weight_mapping
from contracts.stacks.transformers.abilities import EP_IN_FLOAT32, NO_OPTIMIZER, OLDER
from contracts.stacks.transformers.configuration import decline, model_of, places

UNDER_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


class Model:
    """A model of transformers with our names for its tensors."""

    def __init__(
        self, recipe: Recipe, question: str, execution: Execution | None = None, *, wide: bool = False,
        device: str = "",
    ) -> None:  # fmt: skip
        execution = execution or Execution()
        self.recipe, self.kind = recipe, model_of(recipe, execution, question)
        self.links = weight_mapping.links(self.kind, recipe)
        config = self.kind.config(recipe)
        if wide:
            config._experts_implementation = "eager"
        # rope's frequencies are buffers, and computed here; parameters are drawn in float32 all the same
        with (
            shims.quiet(), torch.device(device or execution.device), shims.Wide() if wide else contextlib.nullcontext(),
            fitted(f"a model of {self.kind.name}"),
        ):  # fmt: skip
            set_seed(recipe.seed)
            self.module = self.kind.part("ForCausalLM")(config)
            fitting(self.links, [*self.parameters(), *dict(self.module.named_buffers())], self.trained())
        if wide:
            self.module.double()

    def spread(self, execution: Execution) -> None:
        """Cut the model over ranks as transformers does: while it loads one that was saved whole."""
        from transformers.distributed import DistributedConfig

        degrees, data = execution.degrees, execution.world // execution.degrees.tp
        replicas = execution.replicas if execution.fsdp else data
        cut = DistributedConfig(
            tp_size=degrees.tp, fsdp_size=data // replicas, dp_replicate_size=replicas, ep_size=degrees.ep
        )
        wide = self.module.dtype is torch.float64
        with (
            shims.quiet(), shims.Wide() if wide else contextlib.nullcontext(),
            tempfile.TemporaryDirectory(prefix="transformers-") as mine,
        ):  # fmt: skip
            (folder, *_) = gathered(mine)  # rank 0 alone writes
            self.module.save_pretrained(folder)
            dist.barrier()
            self.module = type(self.module).from_pretrained(
                folder, config=self.module.config, distributed_config=cut, dtype=self.module.dtype
            )
            dist.barrier()

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters())

    def trained(self) -> list[str]:
        """The names of the parameters that have elements."""
        return [name for name, each in self.parameters().items() if each.numel()]

    def recompute(self, how: dict[str, Any] | None) -> None:
        """Recompute each layer in the backward pass; up to 5.10 the call has another name."""
        if hasattr(self.module, "activation_checkpointing_enable"):
            self.module.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
        else:
            self.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)

    def put(self, weights: Arrays, buffers: Arrays) -> None:
        """Copy full tensors in by canonical name; a name or a shape that the model does not have is refused."""
        biases = {name: each for name, each in self.module.named_buffers() if name.endswith("correction_bias")}
        for what, values, into in (("weights", weights, self.parameters()), ("buffers", buffers, biases)):
            if values:
                runs.put(what, values, into, self.links)


def built(recipe: Recipe, mode: Mode) -> Built:
    """Parameters under their canonical names; what decays is what its Trainer lets decay."""
    model = Model(recipe, "built", device="meta")
    decays = set(Trainer.get_decay_parameter_names(None, model.module))
    held = (model.parameters(), dict(model.module.named_buffers()))
    rows, buffers = (to_canonical(one, model.links) for one in held)
    decay = recipe.optim.weight_decay
    return tables.built(
        rows, buffers, {n: decay if link.theirs in decays else 0.0 for link in model.links for n in link.ours}
    )


def initial(recipe: Recipe, mode: Mode) -> Arrays:
    """What a model of transformers draws."""
    model = Model(recipe, "initial")
    return numerics.arrays(to_canonical(model.parameters(), model.links))


def declined_execution(recipe: Recipe, execution: Execution) -> None:
    """Decline an execution that its Trainer cannot run, or that this adapter does not reach.

    Raises:
        NotOffered: with the reason.
    """
    cut = _cut(execution)
    half = execution.precision == "declared" and recipe.dtype != "fp32"
    decline({
        "stack": {
            "its compiler takes the whole model": execution.compile == "blocks",
            "a model that it cut is not compiled": cut and execution.compile != "none",
        },
        "device": {
            "inductor wants a C++ compiler": execution.compile != "none" and execution.backend == "inductor",
            "mamba-ssm's scan of a pass of training calls causal-conv1d, which is not installed": (
                ("M" in recipe.mixers or recipe.parallel_ssm is not None)
                and execution.device != "cpu" and execution.precision != "float64"
                and bool(find_spec("mamba_ssm")) and not find_spec("causal_conv1d")
            ),
        },
        "adapter": {
            "models cut over ranks are not asked in bfloat16": cut and execution.world > 1 and half,
            EP_IN_FLOAT32: execution.degrees.ep > 1 and execution.precision == "float64",
            "several ranks are asked on CPUs": execution.world > 1 and execution.device != "cpu",
        },
    })  # fmt: skip


def run_model(recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
    """One pass of the model, as its Trainer makes it: prepared by accelerate where the recipe is bf16."""
    model_of(recipe, execution, "run_model")
    declined_execution(recipe, execution)
    decline({"adapter": {"a single pass is one process's; sessions have the rest": execution.world > 1}})
    wide, half = execution.precision == "float64", execution.precision == "declared" and recipe.dtype == "bf16"
    model = Model(recipe, "run_model", execution, wide=wide)
    if weights:
        model.put(weights, {})
    if _recomputes(recipe, execution):
        model.recompute(_recomputing(wide))
    device = execution.device
    with shims.quiet(), _computed(wide, model), alone(execution), exact_kernels(device):
        if half:
            Accelerator(cpu=device == "cpu", mixed_precision="bf16").prepare_model(model.module, evaluation_mode=True)
        told = model.module(**{name: each.to(device) for name, each in _inputs(batch, slice(None)).items()})
        if backward:
            told.loss.backward()
    gradients = to_canonical(runs.gradients(model.parameters()), model.links) if backward else {}
    return Pass(
        logits=numerics.array(told.logits.detach()),
        losses={"lm": told.loss.item(), "total": told.loss.item()},
        gradients=numerics.arrays(gradients),
    )


def _inputs(batch: Tokens, rows: slice) -> dict[str, Tensor]:
    """Rows of a batch as its models and its Trainer take them: labels already stand where they are predicted."""
    labels_BT = numerics.tensor(batch.labels)[rows]
    found = {"input_ids": numerics.tensor(batch.tokens)[rows], "labels": labels_BT, "shift_labels": labels_BT}
    if batch.documents is not None:
        found["position_ids"] = places(numerics.tensor(batch.documents)[rows])
    return found


class Rows(list[dict[str, Tensor]]):
    """The microbatches of a run, each an item of the data set, in the order in which ranks take turns."""


def microbatches(session: Session, before: int) -> Rows:
    """Every rank's microbatches, step after step. The Trainer skips those of the `before` steps that were taken
    earlier: copies of the first one stand in their place, so that a wrong number of them changes the loss.
    """
    ranks, cuts = session.execution.world, session.execution.microbatches
    found = Rows()
    windows = session.windows or tuple((batch,) for batch in session.batches)
    for window in windows:
        parts = cuts // len(window)
        for batch in window:
            size = batch.tokens.shape[0] // ranks
            sizes = [len(part) for part in torch.arange(size).tensor_split(parts)]
            for cut in range(parts):
                for rank in range(ranks):
                    first = rank * size + sum(sizes[:cut])
                    found.append(_inputs(batch, slice(first, first + sizes[cut])))
    return Rows([*(found[:1] or Rows([{}])) * (before * ranks * cuts), *found])


def schedule(recipe: Recipe) -> dict[str, Any]:
    """Its own name and arguments for the recipe's schedule."""
    optim = recipe.optim
    name, extra = {
        "cosine": ("cosine_with_min_lr", {"min_lr": optim.min_lr}),
        "linear": ("polynomial", {"lr_end": optim.min_lr, "power": 1.0}),
        "constant": ("constant_with_warmup" if optim.warmup else "constant", {}),
        "WSD": (
            "warmup_stable_decay",
            {
                "num_decay_steps": max(1, optim.steps // 5),
                "decay_type": "linear",
                "min_lr_ratio": optim.min_lr / optim.lr,
            },
        ),
    }[optim.schedule]
    return {"lr_scheduler_type": name, "lr_scheduler_kwargs": extra, "warmup_steps": optim.warmup}


class Seen(runs.Watched):
    """What its Trainer holds."""

    def __init__(self, trainer: Observed) -> None:
        super().__init__(trainer.session, trainer.ours.links)
        self.trainer = trainer

    def parameters(self) -> dict[str, Tensor]:
        return self.trainer.ours.parameters()

    def buffers(self) -> dict[str, Tensor]:
        return dict(self.trainer.ours.module.named_buffers())

    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        return (self.trainer.optimizer,)

    def generators(self) -> Arrays:
        return _generators()


class Observed(Trainer):  # type: ignore[misc]  # not installed where types are checked
    """Its Trainer on given microbatches, recording what each step did. The rates end with the recipe, not the run."""

    def __init__(self, session: Session, model: Model, rows: Rows, last: int, folder: str) -> None:
        self.session, self.ours, self.rows = session, model, rows
        self.seen = Seen(self)
        self.steps: list[Step] = []
        self.begun: Step | None = None
        self.now: dict[str, Any] = {}
        self.gathered: float | None = None
        recipe, execution = session.recipe, session.execution
        optim = recipe.optim
        half = execution.precision == "declared" and recipe.dtype == "bf16"
        # up to 4.57 it takes no norm under a limit of 0
        unlimited = 0.0 if hasattr(Trainer, "_get_grad_norm") else float("inf")
        compiled = {"torch_compile": True, "torch_compile_backend": execution.backend}
        given = TrainingArguments(
            output_dir=session.save or folder, max_steps=last, use_cpu=execution.device == "cpu",
            seed=recipe.seed, bf16=half, gradient_accumulation_steps=execution.microbatches, learning_rate=optim.lr,
            weight_decay=optim.weight_decay, adam_beta1=optim.beta1, adam_beta2=optim.beta2,
            max_grad_norm=optim.clip or unlimited, save_strategy="no", save_total_limit=session.keep,
            logging_steps=1, logging_nan_inf_filter=False, report_to=[], disable_tqdm=True,
            remove_unused_columns=False, gradient_checkpointing=_recomputes(recipe, execution),
            gradient_checkpointing_kwargs=_recomputing(execution.precision == "float64"),
            accelerator_config={"even_batches": False}, dataloader_pin_memory=False,
            **schedule(recipe), **(compiled if execution.compile == "model" else {}),
        )  # fmt: skip
        if given.n_gpu > 1:
            given._n_gpu = 1  # private: else it splits each batch over all devices of this node (nn.DataParallel)
        super().__init__(model=model.module, args=given, callbacks=[_Watch(self)])
        if not hasattr(Trainer, "_clip_grad_norm"):  # up to 4.57 it calls accelerate's in the middle of its loop
            self.accelerator.clip_grad_norm_ = self._clipped(self.accelerator.clip_grad_norm_)

    def get_train_dataloader(self) -> DataLoader[Any]:
        one_each = [[number] for number in range(len(self.rows))]
        return self.accelerator.prepare(DataLoader(self.rows, batch_sampler=one_each, collate_fn=lambda held: held[0]))  # type: ignore[no-any-return, arg-type]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Each rank's part of each batch of the validation, as a batch of its own."""
        session = self.session
        alone = replace(session.execution, microbatches=1)
        rows = microbatches(replace(session, execution=alone, batches=session.validation, windows=()), 0)
        one_each = [[number] for number in range(len(rows))]
        return self.accelerator.prepare(DataLoader(rows, batch_sampler=one_each, collate_fn=lambda held: held[0]))  # type: ignore[no-any-return, arg-type]

    def create_optimizer(self, *given: Any, **named: Any) -> Any:
        made = super().create_optimizer(*given, **named)
        shims.Wide.pause_in(self.optimizer)
        return made

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        return super().create_scheduler(self.session.recipe.optim.steps, optimizer)

    def get_batch_samples(self, *given: Any) -> Any:
        samples, labels = super().get_batch_samples(*given)
        self.now["tokens"] = int(labels)
        return samples, labels

    def _clip_grad_norm(self, model: Any) -> Any:
        self.seen.note(self.state.global_step + 1)
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        if grad_norm is None:
            self.seen.note(self.state.global_step + 1)
        norm = super()._get_grad_norm(model, grad_norm)
        self.now |= {"grad_norm": float(norm), "clip_coef": self.seen.factor()}
        return norm

    def _nested_gather(self, *given: Any, **named: Any) -> Any:
        told = super()._nested_gather(*given, **named)
        self.gathered = told.mean().item()  # as it does next, and then empties it
        return told

    def _clipped(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        def clipping(*given: Any) -> Any:
            self.seen.note(self.state.global_step + 1)
            norm = clip(*given)
            self.now |= {"grad_norm": float(norm), "clip_coef": self.seen.factor()}
            return norm

        return clipping

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The loss that it reports for a step; up to 4.57 with four digits, of what it gathered for it."""
        if "loss" in logs and self.steps:
            loss = logs["loss"] if self.gathered is None else self.gathered
            self.steps[-1] = replace(self.steps[-1], losses={"lm": loss, "total": loss})


class _Watch(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: Observed) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer.begun is None:
            self.trainer.begun = self.trainer.seen.loaded(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.now["lr"] = self.trainer.optimizer.param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        trainer, number = self.trainer, state.global_step
        held = {"gradients": trainer.seen.noted, **trainer.seen.state(number)}
        trainer.steps.append(Step(number=number, losses={}, **trainer.now, **held))
        trainer.now = {}
        control.should_save = trainer.session.save is not None and number in trainer.session.save_at
        control.should_evaluate = bool(trainer.session.validation) and number in trainer.session.validate_at
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        steps, trainer = self.trainer.steps, self.trainer
        steps[-1] = replace(steps[-1], validation=metrics["eval_loss"], **trainer.seen.state(state.global_step))


def train(session: Session) -> Trained:
    """A session: one call of `Trainer.train`, resumed from its last checkpoint where one is to be loaded."""
    model_of(session.recipe, session.execution, "train")
    declined_execution(session.recipe, session.execution)
    decline({
        "stack": {
            "it knows no copy of its checkpoints that another process makes": session.durable,
            "it does not resume a model that it cut over ranks": (session.load or session.save)
            and session.execution.world > 1
            and _cut(session.execution),
        },
        "device": {
            NO_OPTIMIZER: session.load and session.execution.world > 1 and releases.version() in OLDER,
            "without mamba-ssm's kernels it refuses packed documents in a scan": "M" in session.recipe.mixers
            and any(batch.documents is not None for batch in session.batches),
        },
        "adapter": {
            "it has no data of its own; give batches": session.steps and not (session.batches or session.windows),
        },
    })  # fmt: skip
    given = session.batches or session.windows
    if len(given) != session.steps:
        raise refuse("batches", len(given), f"must number the steps ({session.steps})", "give one for each step")
    start, folder = 0, None
    if session.load is not None:
        folder = get_last_checkpoint(session.load)
        if folder is None:
            raise refuse("load", session.load, "holds no checkpoint", "name a folder that a run saved to")
        start = TrainerState.load_from_json(f"{folder}/trainer_state.json").global_step
    wide = session.execution.precision == "float64"
    with alone(session.execution), shims.quiet(), tempfile.TemporaryDirectory(prefix="transformers-") as kept:
        model = Model(session.recipe, "train", session.execution, wide=wide)
        if session.weights or session.buffers:
            model.put(session.weights, session.buffers)
        if session.execution.world > 1 and _cut(session.execution):
            model.spread(session.execution)
        freeze(session.frozen, model.parameters(), model.links)
        trainer = Observed(session, model, microbatches(session, start), start + session.steps, kept)
        with _computed(wide, model), exact_kernels(session.execution.device):
            trainer.train(resume_from_checkpoint=folder)
    return Trained(start=start, steps=tuple(trainer.steps), loaded=trainer.begun)


@contextlib.contextmanager
def _computed(wide: bool, model: Model) -> Iterator[None]:
    """What a model computes in: float64 by its own operations, or as transformers does."""
    with contextlib.ExitStack() as kept:
        if wide:
            kept.enter_context(shims.own_operations(model.kind.modeling))
            kept.enter_context(shims.widened())
        yield


def _recomputes(recipe: Recipe, execution: Execution) -> bool:
    return execution.recompute or recipe.recompute == "full"


def _recomputing(wide: bool) -> dict[str, Any] | None:
    """Its own way of recomputing, in float64 inside the shim."""
    return {"use_reentrant": False, "context_fn": shims.recomputed} if wide else None


def _cut(execution: Execution) -> bool:
    """Whether transformers itself cuts the model; otherwise accelerate wraps it in DistributedDataParallel."""
    return execution.fsdp or execution.degrees.tp > 1 or execution.degrees.ep > 1


@contextlib.contextmanager
def alone(execution: Execution | None = None) -> Iterator[None]:
    """Make accelerate see the world of this run, and forget that of an earlier one in this process."""
    from accelerate.state import AcceleratorState, GradientState

    world = execution.world if execution else 1
    before = dict(os.environ)
    for name in UNDER_TORCHRUN if world == 1 else ():
        os.environ.pop(name, None)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    try:
        yield
    finally:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        for name in {name for name in os.environ if name.startswith("ACCELERATE_")} - before.keys():
            del os.environ[name]  # what it told accelerate of this run: up to 4.57 bf16, which the next would have too
        os.environ.update(before)


def _generators() -> dict[str, Array]:
    """The states of the generators that it saves: torch's, and Python's and NumPy's as a hash of their state."""
    import hashlib

    import numpy as np

    def digest(state: Any) -> Array:
        return numerics.array(
            torch.frombuffer(bytearray(hashlib.sha256(repr(state).encode()).digest()), dtype=torch.uint8)
        )

    with np.printoptions(threshold=10**6):
        return {
            "torch": numerics.array(torch.get_rng_state()),
            "python": digest(random.getstate()),
            "numpy": digest(np.random.get_state()),
        }
