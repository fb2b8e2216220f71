"""Runs torchtitan's trainer and returns its steps as values."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from contracts.instruments import numerics
from contracts.instruments.ranks import gathered
from contracts.spec import pattern as patterns
from contracts.spec.array import Arrays
from contracts.spec.errors import NotOffered, refuse
from contracts.spec.training import Session, Step, Tokens, Trained
from contracts.stacks.torchtitan import shims, weight_mapping
from contracts.stacks.torchtitan.configuration import configuration, declined_execution
from contracts.stacks.torchtitan.model import declined


class Run:
    """One trainer, from its construction to its end."""

    def __init__(self, session: Session) -> None:
        from contracts.stacks.torchtitan.observed_trainer import Observed, OneProcess, OneRank

        self.session, self.recipe = session, session.recipe
        self.alone = session.execution.world == 1
        os.environ.setdefault("LOCAL_RANK", "0")  # the trainer reads it even without a launcher
        self.folder = tempfile.TemporaryDirectory(prefix="titan-")
        _reset()
        kind = OneProcess if self.alone else OneRank
        self.trainer: Observed = kind(configuration(session, self.folder.name))
        self.trainer.before_clip = self.note
        shims.sums_alone(self.trainer.model_parts)
        if self.trainer.parallel_dims.pp_enabled:
            shims.whole_batches(self.trainer.pp_schedule)
        self.raw: dict[str, Tensor] = {}
        self.before: list[Tensor] = []

    def note(self, trainer: Any) -> None:
        """Record the gradients before clipping; `before` is this rank's part of them."""
        grads = {name: each.grad for name, each in self.parameters().items() if each.grad is not None}
        self.before = [_local(each).clone() for each in grads.values()]
        if self.wants("gradients", trainer.step):
            self.raw = {name: _whole(each).clone() for name, each in grads.items()}

    def parameters(self) -> dict[str, Tensor]:
        return {_plain(name): each for part in self.trainer.model_parts for name, each in part.named_parameters()}

    def buffers(self) -> dict[str, Tensor]:
        return {
            _plain(name): each
            for part in self.trainer.model_parts
            for name, each in part.named_buffers()
            if name.endswith("expert_bias_E")
        }

    def wants(self, what: Any, step: int) -> bool:
        return what in self.session.observe and (not self.session.at or step in self.session.at)

    # in
    def put(self, values: Arrays, into: Mapping[str, Tensor], what: str) -> None:
        """Copy full tensors, by canonical name, into the model; each rank keeps its part. Reads them back to check."""
        given = weight_mapping.to_titan(numerics.tensors(values, torch.float32), self.recipe)
        known = set().union(*self.over_stages(list(into)))
        unknown = sorted(set(given) - known)
        if unknown:
            raise refuse(what, unknown[0], "is no tensor of the model", "use the names that built() gives")
        with torch.no_grad():
            for name, target in into.items():
                if name not in given:
                    raise refuse(what, name, "is missing", "give every tensor")
                value = given[name]
                like = isinstance(target, DTensor)
                mesh, placements = (
                    (target.device_mesh, target.placements) if isinstance(target, DTensor) else (None, ())
                )
                part = distribute_tensor(value, mesh, placements, src_data_rank=None) if like else value
                target.copy_(part)
                if not torch.equal(_whole(target.detach()), value):
                    raise RuntimeError(f"{name} was put and is another")

    def rows(self, batch: Tokens) -> Iterator[Any]:
        """This rank's microbatches, in the order in which the trainer reads them."""
        tokens_BT, labels_BT = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
        dims, size = self.trainer.parallel_dims, self.size()
        mesh = dims.get_optional_mesh("batch")
        ranks, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
        for first in range(rank * len(tokens_BT) // ranks, (rank + 1) * len(tokens_BT) // ranks, size):
            yield {"input": tokens_BT[first : first + size]}, labels_BT[first : first + size]

    def size(self) -> int:
        config = self.trainer.config
        staged = self.trainer.parallel_dims.pp_enabled
        found: int = (
            config.parallelism.pipeline_parallel_microbatch_size if staged else config.training.local_batch_size
        )
        return found

    # steps
    def step(self, batch: Tokens) -> Step:
        trainer = self.trainer
        trainer.step += 1
        lr = trainer.lr_schedulers.schedulers[0].get_last_lr()[0]
        self.raw = {}
        trainer.train_step(trainer.batch_generator([*self.rows(batch)]))
        after = [_local(each.grad) for each in self.parameters().values() if each.grad is not None]
        loss = self.loss()
        found = Step(
            number=trainer.step,
            losses={"lm": loss, "total": loss},
            tokens=trainer.tokens,
            lr=lr,
            grad_norm=trainer.metrics_processor.norm,
            clip_coef=self.coefficient(after),
            gradients=self.canonical(self.raw),
        )
        if self.session.validation and trainer.step in self.session.validate_at:
            trainer.validator.validate(trainer.model_parts, trainer.step)
            found = replace(found, validation=trainer.metrics_processor.validation)
        found = replace(found, **self.state(trainer.step))
        self.raw, self.before = {}, []
        if self.session.save is not None and trainer.step in self.session.save_at:
            trainer.checkpointer.folder = self.session.save
            trainer.checkpointer.save(trainer.step)
        return found

    def loss(self) -> float:
        """The loss that the trainer would have logged; in a pipeline, on the rank of the last stage."""
        said = self.trainer.metrics_processor.loss
        if not self.trainer.parallel_dims.pp_enabled:
            return float(said)
        every = gathered([float(said), bool(self.trainer.pp_has_last_stage)])
        return next(float(loss) for loss, last in every if last)

    def coefficient(self, after: list[Tensor]) -> float:
        """The clipping factor, read off all parts of the gradients over all ranks."""
        both = torch.tensor(
            [
                sum(float((now.double() * was.double()).sum()) for now, was in zip(after, self.before, strict=True)),
                sum(float(was.double().square().sum()) for was in self.before),
            ],
            dtype=torch.float64,
        )
        if not self.alone:
            dist.all_reduce(both)
        return float(both[0] / both[1])

    def state(self, step: int) -> dict[str, Any]:
        """The state that the session observes: full tensors by canonical name."""
        found: dict[str, Any] = {}
        for what, tensors in (("weights", self.parameters), ("buffers", self.buffers)):
            if self.wants(what, step):
                found[what] = self.canonical({name: _whole(each.detach()) for name, each in tensors().items()})
        if self.wants("optimizer", step):
            found["optimizer"] = self.moments()
        return found

    def moments(self) -> Arrays:
        """`exp_avg` and `exp_avg_sq` of every parameter."""
        names = {id(each): name for name, each in self.parameters().items()}
        found: dict[str, Any] = {}
        for entry in ("exp_avg", "exp_avg_sq"):
            held = {
                names[id(parameter)]: _whole(state[entry])
                for optimizer in self.trainer.optimizers
                for parameter, state in optimizer.state.items()
                if entry in state
            }
            found |= {f"{name}/{entry}": each for name, each in self.canonical(held).items()}
        return found

    # out
    def canonical(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """The tensors of every stage, by canonical name."""
        whole: dict[str, Tensor] = {}
        for each in self.over_stages({name: numerics.array(value) for name, value in tensors.items()}):
            whole |= numerics.tensors(each)
        return numerics.arrays(weight_mapping.to_canonical(whole, self.recipe))

    def over_stages(self, mine: Any) -> list[Any]:
        """The values of the ranks of this pipeline, first stage first; without a pipeline, this rank's alone."""
        mesh = self.trainer.parallel_dims.get_optional_mesh("pp")
        if mesh is None:
            return [mine]
        every: list[Any] = [None] * mesh.size()
        dist.all_gather_object(every, mine, group=mesh.get_group())
        return every

    def close(self) -> None:
        self.trainer.close()
        self.folder.cleanup()
        if not self.alone:
            dist.barrier()
            _close_groups()


def _reset() -> None:
    """Forget the meshes of earlier runs, which DTensor caches by their ranks."""
    from contracts.stacks.reference.parallel.mesh import forget_meshes

    forget_meshes()


def _close_groups() -> None:
    """Destroy every group but the world: torchtitan creates a dozen per run and keeps them until the process ends.

    torch has no public list of groups; `_world.pg_map` is in 2.13.
    """
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def train(session: Session) -> Trained:
    """A session, on one rank of its world or in this process alone."""
    declined(session.recipe)
    declined_execution(session.recipe, session.execution)
    if not session.batches and session.steps:
        raise NotOffered("torchtitan 0.3.0: its data sets need a tokenizer's files; give batches", "case")
    if any(each.documents is not None and _packed(each) for each in session.batches):
        words = "packed documents need its flex_attention, which a CPU has not compiled"
        raise NotOffered(f"torchtitan 0.3.0: {words}", "device")
    patterns.parse(session.recipe.pattern, session.recipe.depth)
    optim = session.recipe.optim
    undecayed = optim.schedule == "constant" or optim.warmup >= optim.steps
    if undecayed and session.steps > optim.steps:
        raise NotOffered("torchtitan 0.3.0: its schedule asserts a decay behind the last step of its run", "stack")
    longest = max((batch.tokens.shape[1] for batch in (*session.batches, *session.validation)), default=0)
    if longest > session.recipe.seq_length:  # its tables of rope are as long as the recipe says
        session = replace(session, recipe=replace(session.recipe, seq_length=longest))
    compiled = session.execution.compile != "none"
    with shims.quiet(), shims.compiled_in_float32() if compiled else contextlib.nullcontext():
        before = _graphs()
        run = Run(session)
        try:
            found = _run(run, session)
        finally:
            run.close()
    if compiled and session.batches and _graphs() == before:
        raise RuntimeError("blocks were to be compiled, and no graph was made")
    return found


def _graphs() -> int:
    """Number of graphs compiled in this process, from a counter that torch 2.0 to 2.13 has."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _run(run: Run, session: Session) -> Trained:
    if session.load is not None and not run.trainer.checkpointer.load(-1):
        raise refuse("load", session.load, "holds no checkpoint", "name a folder that a run saved to")
    if session.weights:
        run.put(session.weights, run.parameters(), "weights")
    if session.buffers:
        run.put(session.buffers, run.buffers(), "buffers")
    start = run.trainer.step
    loaded = None
    if session.load is not None and 0 in session.at:
        nothing = Step(number=start, losses={}, tokens=0, lr=0.0, grad_norm=0.0, clip_coef=1.0)
        loaded = replace(nothing, **run.state(0))
    return Trained(start=start, steps=tuple(run.step(batch) for batch in session.batches), loaded=loaded)


def _packed(batch: Tokens) -> bool:
    assert batch.documents is not None
    documents_BT = numerics.tensor(batch.documents)
    return bool((documents_BT[:, :1] != documents_BT).any())
