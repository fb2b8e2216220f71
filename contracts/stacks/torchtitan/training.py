"""Runs torchtitan's trainer and returns its steps as values."""

import contextlib
import functools
import importlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from contracts.instruments import numerics, traffic
from contracts.instruments.graphs import compiled_count
from contracts.instruments.ranks import gathered
from contracts.spec import (
    Arrays,
    Execution,
    Messages,
    Mode,
    NotOffered,
    Pass,
    Recipe,
    Rehearsal,
    Routing,
    Session,
    Step,
    Tokens,
    Trained,
    refuse,
)
from contracts.stacks.kit import dry_runs, runs, worlds
from contracts.stacks.kit.messages import watched
from contracts.stacks.torchtitan import shims, symbols, weight_mapping
from contracts.stacks.torchtitan.abilities import ABILITIES, DRAWS
from contracts.stacks.torchtitan.checkpoints import said
from contracts.stacks.torchtitan.configuration import configuration, declined, is_bare, is_half, rows_of


class Run(runs.Run):
    """One trainer of 0.3.0, from its construction to its end.

    Args:
        even: whether its routers choose evenly, whatever their scores are.
    """

    who = "torchtitan 0.3.0"
    abilities = ABILITIES
    own_rates = True

    def __init__(self, session: Session, *, even: bool = False) -> None:
        super().__init__(session, weight_mapping.links(session.recipe))
        self.alone, self.even = is_bare(session), even
        self.folder = tempfile.TemporaryDirectory(prefix="titan-")
        _reset()
        shims.attention_of_own_heads()
        self.trainer = self.build_trainer()
        # those that its optimizers have: behind a pass without gradients its modules hold gathered copies
        self.held_parameters = {
            _plain(name): each for part in self.trainer.model_parts for name, each in part.named_parameters()
        }
        self.trainer.before_clip = lambda trainer: self.note(trainer.step)
        shims.sums_alone(self.trainer.model_parts)
        if self.trainer.parallel_dims.pp_enabled:
            shims.whole_batches(self.trainer.pp_schedule)

    def build_trainer(self) -> Any:
        """Its trainer, observed."""
        from contracts.stacks.torchtitan.observed_trainer import OneProcess, OneRank

        if not is_half(self.session.recipe, self.session.execution):
            shims.experts_keep_their_dtype()
        config = configuration(self.session, self.folder.name)
        config.debug.moe_force_load_balance = self.even
        try:
            return (OneProcess if self.alone else OneRank)(config)
        except ValueError as error:
            if not self.session.rates:
                raise
            raise refuse("rates", dict(self.session.rates), f"torchtitan: {error}", "give others") from error

    def parameters(self) -> Mapping[str, Tensor]:
        return self.held_parameters

    def buffers(self) -> dict[str, Tensor]:
        return {
            _plain(name): each
            for part in self.trainer.model_parts
            for name, each in part.named_buffers()
            if "expert_bias" in name
        }

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return tuple(self.trainer.optimizers)

    def everywhere(self, mine: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of the ranks of this pipeline, first stage first; without a pipeline, only this rank's."""
        mesh = self.trainer.parallel_dims.get_optional_mesh("pp")
        if mesh is None:
            return mine
        every: list[Any] = [None] * mesh.size()
        dist.all_gather_object(every, numerics.arrays(mine), group=mesh.get_group())
        return {name: numerics.tensor(each) for stage in every for name, each in stage.items()}

    def rows(self, batch: Tokens) -> Iterator[Any]:
        """This rank's microbatches, in the order in which the trainer reads them."""
        tokens_BT, labels_BT = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
        dims, size = self.trainer.parallel_dims, self.size()
        mesh = dims.get_optional_mesh("batch")
        ranks, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
        for first in range(rank * len(tokens_BT) // ranks, (rank + 1) * len(tokens_BT) // ranks, size):
            yield symbols.batch_of(tokens_BT[first : first + size], labels_BT[first : first + size])

    def size(self) -> int:
        return rows_of(self.session)

    def step(self, batch: Tokens) -> Step:
        trainer = self.trainer
        trainer.step += 1
        lr = trainer.lr_schedulers.schedulers[0].get_last_lr()[-1]  # the first groups may have rates of their own
        trainer.train_step(trainer.batch_generator([*self.rows(batch)]))
        loss, validation = self.loss(), None
        clip_coef = self.factor()
        if self.session.validation and trainer.step in self.session.validate_at:
            trainer.validator.validate(trainer.model_parts, trainer.step)
            validation = trainer.metrics_processor.validation
        return Step(
            number=trainer.step,
            losses={"lm": loss, "total": loss},
            tokens=trainer.tokens,
            lr=lr,
            grad_norm=trainer.metrics_processor.norm,
            largest=trainer.metrics_processor.largest if self.session.execution.world > 1 else None,
            clip_coef=clip_coef,
            validation=validation,
        )

    def save(self, folder: str) -> None:
        self.trainer.checkpointer.folder = folder
        self.trainer.checkpointer.save(self.trainer.step)

    def load(self, folder: str) -> None:
        try:
            found = self.trainer.checkpointer.load(-1)
        except CheckpointException as error:  # of torch's DCP
            raise refuse("load", folder, said(error), "load what a run of this recipe saved") from error
        if not found:
            raise refuse("load", folder, "holds no checkpoint", "name a folder that a run saved to")
        self.number = self.trainer.step

    def passed(self, batch: Tokens) -> Pass:
        """One batch forward and backward, in its microbatches, without a step."""
        logits: list[Tensor] = []
        hook = self.trainer.model_parts[0].register_forward_hook(lambda *told: logits.append(told[2].detach()))
        self.trainer.before_clip = None
        there = self.trainer.device
        valid = (numerics.tensor(batch.labels) >= 0).sum().float().to(there)
        losses = [
            self.trainer.forward_backward_step(
                input_dict={name: each.to(there) for name, each in given.items()},
                labels=labels.to(there), global_valid_tokens=valid,
            ).item()
            for given, labels in self.rows(batch)
        ]  # fmt: skip
        hook.remove()
        told = dict.fromkeys(("lm", "total"), sum(losses))
        found = self.canonical(runs.gradients(self.parameters()))
        return Pass(
            logits=numerics.array(torch.cat(logits).view(*batch.tokens.shape, -1)), losses=told, gradients=found
        )

    def loss(self) -> float:
        """The loss that the trainer would have logged; in a pipeline, on the rank of the last stage."""
        said = self.trainer.metrics_processor.loss
        if not self.trainer.parallel_dims.pp_enabled:
            return float(said)
        with traffic.unrecorded():
            every = gathered([float(said), bool(self.trainer.pp_has_last_stage)])
        return next(float(loss) for loss, last in every if last)

    def close(self) -> None:
        self.trainer.close()
        self.folder.cleanup()
        if not self.alone:
            dist.barrier()
            worlds.close_groups()


def _reset() -> None:
    """Forget the meshes of earlier runs, which DTensor caches by their ranks."""
    from contracts.stacks.reference.parallel.mesh import forget_meshes

    forget_meshes()


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


@contextlib.contextmanager
def _running(session: Session, question: str, kind: type[Run]) -> Iterator[Run]:
    """A run of a session that torchtitan can run, with tables of rope as long as its longest batch."""
    declined(session.recipe, session.execution, question, kind.who, kind.abilities)
    longest = max((batch.tokens.shape[1] for batch in (*session.batches, *session.validation)), default=0)
    if longest > session.recipe.seq_length:
        session = replace(session, recipe=replace(session.recipe, seq_length=longest))
    if any(map(runs.packed, session.batches)):
        words = "packed documents need its flex_attention, which a CPU has not compiled"
        raise NotOffered(f"{kind.who}: {words}", "device")
    half, compiled = is_half(session.recipe, session.execution), session.execution.compile != "none"
    meshed, device = session.execution.world == 1 and not is_bare(session), session.execution.device
    if meshed and dist.is_initialized():
        raise NotOffered(f"{kind.who}: a process by itself among others is asked in float32, under AdamW")
    with (
        shims.quiet(),
        shims.computing_on(device),
        worlds.of_one(device) if meshed else contextlib.nullcontext(),
        shims.muon_on_a_cpu() if session.recipe.optim.rule == "muon" and device == "cpu" else contextlib.nullcontext(),
        shims.block_in(torch.bfloat16) if half else contextlib.nullcontext(),
        shims.compiled_in_float32() if compiled and not half else contextlib.nullcontext(),
    ):
        run = kind(session, even=question == "rehearse")
        try:
            yield run
        finally:
            run.close()


def initial(recipe: Recipe, mode: Mode, kind: type[Run] = Run) -> Arrays:
    """The weights that its trainer draws."""
    with _running(Session(recipe=recipe, steps=0), "initial", kind) as run:
        return run.weights()


def run_model(
    recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool, kind: type[Run] = Run
) -> Pass:
    """One pass, as its trainer makes it: forward, loss and backward."""
    if execution.world > 1:
        raise NotOffered(f"{kind.who}: a single pass is one process's; sessions have the rest")
    wide = shims.block_in(torch.float64) if execution.precision == "float64" else contextlib.nullcontext()
    session = Session(recipe=recipe, steps=0, execution=execution, batches=(batch,))
    with wide, _running(session, "run_model", kind) as run:
        if execution.precision == "float64":
            run.trainer.model_parts[0].double()
        run.put(weights, {})
        found = run.passed(batch)
    return found if backward else replace(found, gradients={})


def train(session: Session, kind: type[Run] = Run) -> Trained:
    """A session, on one rank of its world or in this process only."""
    if not session.batches and session.steps:
        raise NotOffered(f"{kind.who}: its data sets need a tokenizer's files; give batches", "case")
    ranks = session.execution.world // (session.execution.degrees.pp * session.execution.degrees.tp)
    cuts = ranks * session.execution.microbatches
    if any(each.tokens.shape[0] % cuts for each in session.batches):
        raise NotOffered(f"{kind.who}: a batch is a multiple of its microbatches, it asserts", "stack")
    optim = session.recipe.optim
    undecayed = optim.schedule == "constant" or optim.warmup >= optim.steps
    if undecayed and session.steps > optim.steps:
        raise NotOffered(f"{kind.who}: its schedule asserts a decay after the last step of its run", "stack")
    execution = session.execution
    cut = execution.fsdp or max(execution.degrees.tp, execution.degrees.ep) > 1
    drawn = not session.weights and session.load is None
    if cut and drawn and "weights" in session.observe:
        raise NotOffered(f"{kind.who}: {DRAWS}", "device")
    before = compiled_count()
    with _running(session, "train", kind) as run:
        try:
            found = runs.trained(run)
        except RuntimeError as error:
            if not str(error).startswith("Loss is not finite"):
                raise
            raise refuse("batches", len(session.batches), f"torchtitan: {error}", "give finite numbers") from error
    if session.execution.compile != "none" and session.batches and compiled_count() == before:
        raise RuntimeError("blocks were to be compiled, and no graph was made")
    return found


@functools.lru_cache(maxsize=64)  # several questions are about one step
def rehearsed(recipe: Recipe, execution: Execution, rank: int, routing: Routing, kind: type[Run] = Run) -> Rehearsal:
    """One step of its trainer over torch's fake backend, as its `comm.mode=fake_backend` has it.

    Raises:
        NotOffered: for what torchtitan does not have, or not on a CPU. Refused: for a rank that is not in the world.
    """
    dry_runs.refuse_rank(execution, rank)
    if routing != "balanced" and recipe.moe is not None:
        words = "a dry run routes evenly, by its debug.moe_force_load_balance: nothing crowds its experts"
        raise NotOffered(f"{kind.who}: {words}", "stack")
    if execution.compile != "none":
        raise NotOffered(f"{kind.who}: what a compiled graph issues is not seen; rehearse it uncompiled")
    batch = dry_runs.rows_of(recipe)
    session = Session(recipe=recipe, steps=2, execution=execution, batches=(batch, batch))
    alone = execution.world == 1 and is_bare(session)
    with (
        contextlib.nullcontext() if alone else worlds.pretended(execution.world, rank),
        _running(session, "rehearse", kind) as run,
    ):
        return dry_runs.stepped(run, recipe)


def rehearse(recipe: Recipe, execution: Execution, rank: int, routing: Routing, kind: type[Run] = Run) -> Rehearsal:
    """A dry run of one rank's step, in a process without a world."""
    if dist.is_initialized():
        declined(recipe, execution, "rehearse", kind.who, kind.abilities)  # what another process raises is no answer
        own = ("contracts.stacks.torchtitan.stack", "Torchtitan", dict[str, str]())
        return dry_runs.elsewhere(own, recipe, execution, rank, routing)
    return rehearsed(recipe, execution, rank, routing, kind)


def messages(session: Session) -> Messages:
    """What the stages of its pipeline send each other in a session."""
    declined(session.recipe, session.execution, "train", Run.who, ABILITIES)
    importlib.import_module("torchtitan.trainer")  # under the watch this would take minutes
    return watched(train, session)
