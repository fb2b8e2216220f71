"""Records what a training script does, by hooks of torch: no line of the script changes, no collective is issued.

A step begins with the first forward pass of a root module under grad, and ends where the next one begins after an
optimizer has stepped. A root module is one that is called while no other module is running.
"""

import contextlib
import ctypes
import fnmatch
import functools
import hashlib
import itertools
import math
import os
import re
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.utils
import torch.optim.lr_scheduler
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

# now: a name imported later may be of the script's own package
from contracts.instruments.traffic import NAMESPACES, Collective
from contracts.instruments.traffic import read as collective
from contracts.observe import applied, around, consumed, cut, device, outputs, phases, placement, routing, source
from contracts.observe.lines import Lines
from contracts.observe.merged import Whole, grid
from contracts.observe.names import canonical
from contracts.observe.placement import Held
from contracts.observe.readers import Reader, reader_of
from contracts.observe.sketch import CHUNK, Piece, fingerprint, hashed, key_of, sketch, span, whole
from contracts.observe.trace import Writer
from contracts.observe.walked import Walked

_Place = tuple[Any, str]
"""A weak reference to a module, and the name that it gives to a parameter."""
MOST_COLLECTIVES = 20_000
_ROW = key_of("rankproof row", 0) >> 1


class Recorder:
    """Observes this process from `start` until `steps` steps are over, or `stop`.

    Args:
        writer: where the trace goes.
        steps: how many steps are observed.
        perturb: a seed: before the first step each floating weight moves by one unit in its last place, up or down. The
            traces of such runs say what rounding does to each tensor.
        keep: whether the weights before the first step are written whole.
        full: patterns of names: weights and gradients that are written whole in every step.
        lent: the weights with which the run begins, of another trace.
        stops: whether the script ends, without an error, when it begins the step after those.
    """

    grouped = False
    """Whether there was a process group. Nothing that holds one is freed after the script has destroyed it: the
    destructor of a gloo group keeps the GIL and joins threads, and one of them may still wait for it, to free a tensor
    that this recorder has seen (torch 2.11 to 2.13)."""

    def __init__(
        self, writer: Writer, steps: int, *, perturb: int | None = None, collectives: bool = True,
        keep: bool = False, full: Sequence[str] = (), lent: Mapping[str, Whole] | None = None,
        stops: bool = False,
    ) -> None:  # fmt: skip
        self.writer, self.steps, self.perturb, self.stops = writer, steps, perturb, stops
        self.keep, self.full, self.lent = keep, tuple(full), lent
        self.step, self.done, self.stepped, self.backward, self.microbatch = 0, 0, False, 0, 0
        self.roots: list[nn.Module] = []
        self.optimizers: list[Any] = []
        self.trained_on: set[str] = set()  # kinds of devices that hold what the optimizers move
        self.readers: list[Reader] = []
        self.flat: set[int] = set()  # parameters of FSDP1
        self._holders: dict[int, tuple[Any, _Place]] = {}
        self._tied: list[tuple[_Place, _Place]] = []
        self.rank, self.hears = 0, collectives
        self.replicas: tuple[int, ...] = ()
        self.parameters: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        self.depth, self.busy, self.on = 0, False, False
        self.inside: tuple[FrameType, nn.Module] | None = (
            None  # a root whose `forward` was called by name, and its frame
        )
        # whether a root's forward pass under grad is under way; whether it was given no ids, and receives a stream
        self.running, self.blind, self.received = False, False, False
        self.rows: Tensor | None = None  # a number for each row, where outputs can be told by rows
        self.tokens: tuple[int, ...] = ()
        self.calls: dict[str, int] = {}
        self.optimizing, self.normed, self.inside_backward = 0, 0, False
        self.tried: Tensor | None = None  # the first parameter of a root whose passes in this step were evaluations
        self.scheduled = False  # whether a schedule of pipelines runs the roots, their backward passes included
        self.rates: dict[int, float] = {}  # by parameter, as a scheduler set it last
        self.unseen: dict[str, int] = {}
        self.collectives: dict[str, list[str]] = {}
        self.reduced = 0  # elements that an optimizer's `step` has reduced over ranks in this step
        self.within: set[str] = set()  # groups that a forward pass has sent numbers over
        self.routing: list[tuple[str, Any, str]] = []
        self.dispatch = routing.Dispatch()
        self.counted: dict[str, list[float]] = {}  # behind the last backward pass
        self.recounts, self.looked_at = False, 0  # the step whose evaluation was looked at
        self.early: list[bool] = []  # whether the model was in training mode, of evaluations in front of the first step
        self.buffers: dict[str, str] | None = None  # before the evaluation that is under way
        self.drops, self.evaluates = False, False  # whether it applies dropout; whether all modules evaluate
        self.held: dict[str, Any] | None = None  # buffers before the forward pass that is under way
        self.due = False  # whether they are to be written in this step
        self.epochs = consumed.Epochs()
        self.sample = applied.Sample(self._there)
        self.labels: list[consumed.Labels] = []  # of the backward pass that is under way
        self.updated: dict[tuple[str, str], str] = {}  # bits of the weights behind the latest step, by name and dtype
        self.failed, self.forked, self.random, self.mode = "", False, "", _NO_MODE
        self.devices: dict[torch.device, device.Device | None] = {}
        self.phases: dict[Any, phases.Phase] = {}
        self.walked: dict[int, Walked] = {}  # by the id of a root
        self.outputs: dict[int, outputs.Output] = {}  # by the id of their module
        self.moved: list[Callable[[], bool]] = []  # whether weights have moved since their update
        self.lines = Lines()
        self.read: list[Callable[[], None]] = []  # what is done as soon as a device was read
        self._undo: list[Callable[[], None]] = []

    # the frame: hooks in, hooks out

    def start(self) -> None:
        """Put the hooks in."""
        self.on = True
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")
        handles = [
            hooks.register_module_forward_pre_hook(self._before_module),
            hooks.register_module_forward_hook(self._after_module, always_call=True),
            hooks.register_module_parameter_registration_hook(self._registered),
            register_optimizer_step_pre_hook(self._before_torchs_step),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._after_step(optimizer)),
        ]
        self._undo += [handle.remove for handle in handles]
        self._replace(torch.autograd, "backward", self._backward)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            self._replace(owner, "clip_grad_norm_", self._clip)
            if hasattr(owner, "get_total_norm"):  # torch 2.6
                self._replace(owner, "get_total_norm", self._total)
                self._replace(owner, "clip_grads_with_norm_", self._clip_with)
        for each in _schedulers(torch.optim.lr_scheduler.LRScheduler):
            self._replace(each, "step", self._scheduled)
        self._replace(Optimizer, "zero_grad", self._zeroes)
        self._replace(nn.Module, "zero_grad", self._zeroes)
        self._replace(nn.Module, "compile", self._compiles)
        self._replace(consumed.LOADER, "__iter__", self._epoch)
        self._replace(consumed.ITERATOR, "_next_index", self._drawn)
        if self.hears:
            self.mode = _Dispatched(self)
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            self._undo.append(self.mode.leave)
        # a worker that loads data is not this rank
        os.register_at_fork(before=self.lines.join, after_in_child=self._forked)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before = getattr(owner, name)
        setattr(owner, name, make(before))
        self._undo.append(lambda: setattr(owner, name, before))

    def stop(self) -> None:
        """End the step that is under way, if its optimizer has stepped, and take the hooks out."""
        if self.on and self.stepped:
            with _Apart(self):
                self._begin_step(running=False)
        self._unhook()

    def _unhook(self) -> None:
        """Take the hooks out, and keep nothing of the script's alive."""
        self.on = False
        for undo in reversed(self._undo):
            undo()
        if self.grouped and not dist.is_initialized():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(dict(vars(self))))  # see `grouped`
            time.sleep(0.2)  # without the GIL: such a thread ends the process if it waits until the interpreter ends
        self._undo.clear()
        self.roots, self.optimizers, self.readers, self.routing = [], [], [], []
        self.sample, self.tried = applied.Sample(), None
        self.phases, self.outputs, self.walked, self.inside = {}, {}, {}, None

    def fails(self, error: Exception) -> None:
        """What the recorder cannot do ends the observing, and not the script."""
        if not self.failed:
            self.failed = f"the recorder failed: {type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                print(f"rankproof: {self.failed}; the script continues unobserved", file=sys.stderr)  # noqa: T201
        self.on = False  # the hooks stay until the end: torch goes through them at this moment

    def _forked(self) -> None:
        self._unhook()
        if not self.forked:
            self.forked = True
            self.writer.leave()

    def close(self, error: str = "", *, is_rank: bool = True) -> None:
        """End the trace; a process that is no rank has none, unless it has written one."""
        if self.forked or not (is_rank or self.writer.opened):
            self._unhook()
            return
        self.stop()
        with _Apart(self):
            self._settle()
            self.lines.write()
            self._write_collectives()
        with _Apart(self):
            self.writer.close(error or self.failed, steps=self.done, unseen=self.unseen)

    # what the script may say itself

    def add_root(self, root: nn.Module) -> None:
        if self.on and all(root is not each for each in self.roots):
            with _Apart(self):
                self._name(root)

    def add_optimizer(self, held: Any) -> None:
        def make(before: Callable[..., Any]) -> Callable[..., Any]:
            def step(*arguments: Any, **named: Any) -> Any:
                self._before_step(held)
                try:
                    return before(*arguments, **named)
                finally:
                    self._after_step(held)

            return step

        if self.on and not isinstance(held, Optimizer):
            self._replace(held, "step", make)

    def told_step(self, microbatches: int | None) -> None:
        if self.on and microbatches is not None:
            with _Apart(self):
                self._add("told", step=self.step + (self.stepped or not self.step), microbatches=microbatches)
        elif self.on:
            self.stepped = True

    # modules

    def _before_module(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or self.busy or not self.on:
            return
        self.depth += 1
        if self.depth == 2 and self.due and not _recomputed():
            with _Apart(self):  # DDP has sent them by now
                self._write_buffers()
        if self.depth > 1 or _recomputed():
            return
        frame, owner = around.around(module)
        if self.inside is not None and self.inside[0] is frame:
            return
        # torch gives a global pre-hook no keyword arguments; they stand in the frame that calls it
        named = sys._getframe(1).f_locals.get("kwargs") or {}
        training = torch.is_grad_enabled()
        with _Apart(self):
            self._ends_inside()
            if frame is not None and owner is not None:
                module, arguments, named, self.inside = owner, (), around.given(frame), (frame, owner)
            self._root_begins(module, arguments, named, training)
            if self.due and not _replicas(module):
                self._write_buffers()
        if self.stops and self.done == self.steps:
            raise SystemExit(0)

    def _compiles(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """`module.compile()` compiles its hooks too, in which nothing is seen: they are called around it instead."""

        def compiles(module: nn.Module, *options: Any, **named: Any) -> None:
            before(module, *options, **named)
            inner: Any = module._compiled_call_impl  # private; torch 2.2 - 2.13

            def call(*arguments: Any, **kwargs: Any) -> Any:
                result = None
                self._before_module(module, arguments)
                try:
                    result = inner(*arguments, **kwargs)
                    return result
                finally:
                    self._after_module(module, arguments, result)

            module._compiled_call_impl = call

        return compiles

    def _ends_inside(self) -> None:
        """The pass of a root whose `forward` was called by name ends where something else begins."""
        if self.inside is not None:
            root, self.inside = self.inside[1], None
            if self.buffers is not None:
                self._evaluation_ends(self.buffers)
            if self.running:
                self._pass_ends(root)

    def _pass_ends(self, root: nn.Module) -> None:
        self._write_statistics()
        self._add(
            "drawn", step=self.step, microbatch=self.microbatch, drawn=_random_state(root) != self.random,
            received=self.received,
        )  # fmt: skip
        self.running, self.rows = False, None

    def _after_module(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if torch.compiler.is_compiling() or self.busy or not self.on:
            return
        self.depth = max(0, self.depth - 1)
        outermost = self.depth == 0 and self.inside is None
        if outermost and self.buffers is not None:
            with _Apart(self):
                self._evaluation_ends(self.buffers)
        if _recomputed() or self.step == 0 or not self.running:
            return
        if not outermost and self._ends_again(module, result):
            return
        with _Apart(self):
            self._routed(module, arguments, result)
            if id(module) in self.dispatch.beside:
                self._handed(module, arguments)
            if self.rows is not None:
                self._module_ends(module, result)
            if outermost:
                self._pass_ends(module)

    def _ends_again(self, module: nn.Module, result: Any) -> bool:
        """Whether an output was summed up as an earlier one of its module: by a launch, and no operator of torch."""
        known = self.outputs.get(id(module))
        if known is None or self.rows is None or id(module) in self.dispatch.beside:
            return False
        try:
            if not (known.at_once and known.like(result, self.tokens)):
                return False
            self._sum_up(known, result, self.rows)
        except Exception as error:  # see `_Apart`
            self.fails(error)
        return True

    def _sum_up(self, known: outputs.Output, output: Tensor, rows: Tensor) -> None:
        call = self.calls[known.name] = self.calls.get(known.name, 0) + 1
        numbers = (self.step, call, self.microbatch)
        self.lines.add(known.launch(output, rows, numbers, self.writer), waits=True)

    def _root_begins(
        self, root: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], training: bool
    ) -> None:
        if not any(each.device.type != "meta" for each in root.parameters()):
            return  # a loss module, a metric; a copy without numbers that counts operations
        if not training:
            self._evaluates(root)
            if self.stepped and self.looked_at != self.step:  # the first of each step
                self.looked_at, self.buffers = self.step, self._buffers()
                self.drops, self.evaluates = False, not any(each.training for each in root.modules())
            return
        callers = _callers()
        if callers & _TRIED:
            return  # a pass that a schedule learns shapes from
        given = {**{str(at): each for at, each in enumerate(arguments)}, **named}
        tensors = {name: each for name, each in _tensors(given) if not placement.unknown(each)}
        self.scheduled = bool(callers & _SCHEDULED)
        later = _later(root, tensors, scheduled=self.scheduled)
        if all(root is not each for each in self.roots):
            if self.roots and all(id(each) in self.modules for each in root.modules()):
                pass  # a part of a model that is known already
            else:
                self._name(root, later)
                if self.step and not self.stepped:
                    self._begin_weights(root)
        if self.step == 0 or self.stepped:
            self._begin_step()
            self._write_left(first=True)
        if not self.on:
            return
        self._ends_trials(root)
        if self.counted and self.counted != self._counters():
            self.recounts = True  # as where a scaler skips a step, which then counts to the next
        self._write_input(root, tensors, later)

    def _ends_trials(self, root: nn.Module) -> None:
        """Passes in evaluation mode that no backward pass has followed when the root, or what wraps it, begins in
        training mode are an evaluation that keeps a graph."""
        first = next(root.parameters())
        if root.training and not self.backward and self.tried is first:
            self._add("dropped", step=self.step, microbatches=self.microbatch, backward=0)
            self.microbatch = 0
            self._write_modes()
        evaluates = not root.training and (self.tried is first or not self.microbatch)
        self.tried = first if evaluates else None

    def _evaluates(self, root: nn.Module) -> None:
        if self.step:
            self._add("evaluation", step=self.step, after=self.stepped, training=root.training)
        else:  # this rank may not know its number yet
            self.early.append(root.training)

    def _write_input(self, root: nn.Module, tensors: Mapping[str, Tensor], later: bool) -> None:
        self.microbatch += 1
        self.calls = {}
        plain = None if later else cut.plain(tensors)
        there = self._there(plain.ids[0]) if plain is not None else None
        if there is not None and plain is not None:
            self.rows, kept = there.numbered(plain.ids, named=plain.named, key=_ROW)
            self.tokens, length, rows = plain.tokens, plain.ids[0].shape[1], self.rows
        else:
            rows, self.rows, self.tokens = _rows(tensors, later)
            halves, length = cut.halves({name: _local(each) for name, each in tensors.items()})
            kept = [[] if each is None else self._kept(each[: cut.MOST_ROWS]) for each in (rows, self.rows, halves)]
        if later and (rows is None or self.rows is rows):
            self._miss("inputs of a stage of a pipeline that is given no ids")
            self.rows, kept[1] = None, []
        self.running, self.random = True, _random_state(root)
        self.blind, self.received = not any(name.endswith("input_ids") for name in tensors), False
        known = {
            "step": self.step, "microbatch": self.microbatch, "random": self.random,
            "epoch": self.epochs.epoch, "batch": self.epochs.batch, "last": self.epochs.last,
            "tensors": {name: [list(each.shape), _dtype(each)] for name, each in tensors.items()},
        }  # fmt: skip
        weight = next(root.parameters())
        if self.rows is not None and device.here(weight):  # once for all outputs, where a script moves its inputs later
            self.rows = self.rows.to(weight.device)

        def write() -> None:
            consumed, ids, parts = ([int(one) for one in _told(each)] for each in kept)
            consumed = [] if later else consumed
            more = {"ids": ids} if ids != consumed else {}
            self.writer.add("input", rows=consumed, halves=parts, length=length, **more, **known)

        self.lines.add(write, waits=any(callable(each) for each in kept))
        if rows is None and not later:
            self._miss("root inputs without a tensor")

    def _buffers(self) -> dict[str, str]:
        """A digest of each buffer that a checkpoint keeps; a cache that none keeps may change at any time."""
        found = {}
        for module in (each for root in self.roots for each in root.modules()):
            for name, each in _persistent(module):
                mine = placement.held(each)
                if mine.pieces is not None:
                    held = mine.local.detach().cpu().contiguous()
                    digest = hashlib.sha256(held.reshape(-1).view(torch.uint8).numpy().tobytes())
                    found[f"{self.modules.get(id(module), '')}.{name}"] = digest.hexdigest()
        return found

    def _every_buffer(self) -> Iterator[tuple[str, Held]]:
        """What this rank holds of each buffer that a checkpoint keeps, but for those of a norm's running statistics."""
        for module in (each for root in self.roots for each in root.modules()):
            for name, each in () if isinstance(module, _NormBase) else _persistent(module):
                found = placement.held(each)
                if found.pieces is not None:
                    yield f"{self._whose(module)}.{name}".removeprefix("(root).").replace("..", "."), found

    def _write_buffers(self) -> None:
        self.due, self.held = False, {}
        for name, mine in self._every_buffer():
            self.held[name] = self._bits(mine)
            self._add(
                "buffer", step=self.step, name=name, shape=list(mine.shape), dtype=_dtype(mine.local), part=mine.part,
                partial=mine.partial, bits=self.held[name], squares=0.0, sketch=None,
            )  # fmt: skip
        self._launch()

    def _write_statistics(self) -> None:
        """Which buffers a forward pass changes, by what this rank's rows are."""
        before, self.held = self.held, None
        if before:
            after = {name: self._bits(mine) for name, mine in self._every_buffer()}
            self._launch()
            waits = any(callable(each) for each in after.values())

            def changed() -> list[str]:
                return [name for name, bits in before.items() if _told(after.get(name)) != _told(bits)]

            self._add("statistics", step=self.step, names=changed if waits else changed())

    def _bits(self, mine: Held) -> Any:
        """The fingerprint of what is held; a function that reads it after the step, if a device has to say it."""
        there = self._there(mine.local, mine.pieces)
        if there is None:
            return f"{fingerprint(mine.local.detach(), mine.pieces or ()):016x}"
        asked = there.ask(mine.local, mine.pieces or (), sketch=False)
        return functools.cache(lambda: asked.bits)

    def _epoch(self, before: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def begin(loader: Any) -> Any:
            if self.on and self._trains():
                self.epochs.begin(loader)
                with _Apart(self):
                    self._write_split(consumed.split(loader))
            return before(loader)

        return begin

    def _write_split(self, found: consumed.Split | None) -> None:
        if found is not None and found != self.epochs.split:
            self.epochs.split = found
            self._add("split", **vars(found))

    def _drawn(self, before: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def drawn(batches: Any) -> Any:
            found = before(batches)
            if self.on and self._trains():
                self.epochs.batch += 1
                numbers = [found] if isinstance(found, int) else found
                if self.epochs.epoch and isinstance(numbers, list) and all(isinstance(each, int) for each in numbers):
                    self._add("drawn-rows", step=self.step, epoch=self.epochs.epoch, numbers=numbers[: cut.MOST_ROWS])
            return found

        return drawn

    def _trains(self) -> bool:
        return torch.is_grad_enabled() and (not self.roots or any(each.training for each in self.roots))

    def _evaluation_ends(self, before: Mapping[str, str]) -> None:
        after, self.buffers = self._buffers(), None
        changed = sorted(name for name in before if after.get(name) != before[name])
        self._add("evaluated", step=self.step, buffers=len(before), changed=changed[:1000], dropout=self.drops)

    def _module_ends(self, module: nn.Module, result: Any) -> None:
        like = self.outputs.get(id(module))
        if like is not None and self.rows is not None and like.like(result, self.tokens):
            return self._sum_up(like, result, self.rows)
        name = self.modules.get(id(module))
        output = next((each for _, each in _tensors({"": result}) if each.is_floating_point()), None)
        if name is None or output is None or type(module) is nn.Identity:
            return None  # a stage of a pipeline may have one where another stage has the module of that name
        if kind := placement.unknown(output):
            return self._miss(f"outputs of modules of a kind that is not read: {kind}")
        if isinstance(output, DTensor):
            if not all(each.is_replicate() for each in output.placements):
                return self._miss("outputs of modules that are sharded DTensors")
            output = output.to_local()
        if len(self.tokens) > 1 and tuple(output.shape[:2]) == self.tokens[::-1] != self.tokens:
            output = output.transpose(0, 1)  # Megatron's: positions first, then rows
        assert self.rows is not None
        pieces, batched = self._of_batch(output)
        there = self._there(output, pieces, batched=batched)
        if there is None:
            call = self.calls[name] = self.calls.get(name, 0) + 1
            return self._tensor("forward", Held(local=output, shape=tuple(output.shape), pieces=pieces), name=name,
                                call=call, microbatch=self.microbatch, batched=batched)  # fmt: skip
        rows = pieces[0].indices[0].to(output.device) if batched else self.rows
        by = there.of_batch(output, pieces[0]) if batched else there.of_whole(name, output.dtype, pieces)
        known = outputs.made(name, output, by, self.tokens)
        if output is result and rows is self.rows:
            self.outputs[id(module)] = known
        return self._sum_up(known, output.detach().contiguous(), rows)

    def _routed(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        choice = routing.chosen(result) if id(module) in self.modules else None
        if choice is None:
            return None
        if any(isinstance(each, Tensor) and each.dtype == torch.bool for each in arguments):
            return self._miss("routers that are given a mask of tokens")
        name = self._whose(module)
        self.dispatch.chose(name, choice.shape[1], self.modules)
        return self._add(
            "routed", step=self.step, microbatch=self.microbatch, name=name, tokens=len(choice),
            counts=choice.sum(0).tolist(), twice=int((choice > 1).sum()),
        )  # fmt: skip

    def _handed(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        router, rows = self.dispatch.handed(id(module), arguments)
        if rows is not None:
            self._add("handed", step=self.step, microbatch=self.microbatch, name=router, rows=rows)

    def told_dropped(self, assignments: int) -> None:
        if self.on and self.running and self.dispatch.routers:
            self._add("told-dropped", step=self.step, microbatch=self.microbatch, name=self.dispatch.routers[-1],
                      assignments=int(assignments))  # fmt: skip

    def _whose(self, module: nn.Module) -> str:
        """The name of a module; by those of its parameters where a reader numbers the layers of stages."""
        inside = next(iter(module.named_parameters()), None) if self.readers else None
        told = self.parameters.get(id(inside[1]), "") if inside else ""
        return told.removesuffix("." + inside[0]) if inside and told else self.modules.get(id(module), "")

    def _write_routing(self, kind: str) -> None:
        for which, module, name in self.routing:
            if which == kind:
                self._add(kind, step=self.step, name=f"{self._whose(module)}.{name}",
                                values=routing.values(module, name))  # fmt: skip

    def _counters(self) -> dict[str, list[float]]:
        return {f"{self._whose(module)}.{name}": routing.values(module, name)
                for kind, module, name in self.routing if kind == "counter"}  # fmt: skip

    def _of_batch(self, output: Tensor) -> tuple[tuple[Piece, ...], bool]:
        """The pieces of a module's output, whose rows are known by what they were computed from."""
        assert self.rows is not None
        count, lead = len(self.rows), len(self.tokens)
        indices = [span(size) for size in output.shape]
        shorter = (count, self.tokens[-1] - 1)  # where the model itself shifts its labels
        if tuple(output.shape[:lead]) in (self.tokens, shorter):
            indices[0] = self.rows
            return (Piece(start=0, indices=tuple(indices), coarse=True),), True
        flat = count * self.tokens[1] if lead > 1 else 0
        if lead > 1 and output.dim() > 0 and output.shape[0] == flat and flat != count:
            positions = torch.arange(self.tokens[1], device=self.rows.device)
            indices[0] = (self.rows[:, None] + positions).reshape(-1) & _POSITIVE
            return (Piece(start=0, indices=tuple(indices), coarse=True),), True
        return whole(output.shape), False

    # steps

    def _begin_step(self, *, running: bool = True) -> None:
        """End the step before, and write what the weights are before the next one; `running` says whether there is
        one."""
        if not running:
            self._ends_inside()
        self._write_collectives()
        for each, found in self.counted.items():
            self._add("counted", step=self.step, name=each, values=found, again=self.recounts)
        self.counted, self.recounts = {}, False
        if self.step:
            self.done = self.step
            self._add("step", step=self.step, backward=self.backward, microbatches=self.microbatch,
                      devices=sorted(self.trained_on), reduced=self.reduced, within=sorted(self.within))  # fmt: skip
        self.step, self.stepped, self.backward, self.microbatch = self.step + 1, False, 0, 0
        self.due, self.reduced, self.within = running, 0, set()
        if self.step == 1:
            self.grouped = dist.is_initialized()
            if self.grouped:
                self._add("world", step=1, rank=dist.get_rank(), size=dist.get_world_size())
            for training in self.early:
                self._add("evaluation", step=1, after=False, training=training, before=True)
            for pair in self._tied:
                self._add("tied", names=[self._full_name(*each) for each in pair])
        self._begin_weights(*self.roots)
        self._write_untied()
        for kind in routing.BUFFERS:
            self._write_routing(kind)
        if running:
            self._write_modes()
        if self.step > self.steps:
            self.lines.write()
            self._unhook()
        self.writer.flush()

    def _write_modes(self) -> None:
        for number, root in enumerate(self.roots):
            still = [each for each in self._walked(root).modules if not each.training]
            modes, matter = (sorted(self.modules[id(each)] for each in them)[:1000]
                             for them in (still, filter(_depends_on_mode, still)))  # fmt: skip
            self._add("modes", step=self.step, evaluating=modes, count=len(still), matter=matter, root=number)

    def _begin_weights(self, *roots: nn.Module) -> None:
        """Write what the weights are before a step; those of a root that is called later in it, when it is."""
        named = list(self._every_parameter(*roots))
        if self.step == 1 and self.lent is not None:
            self._lend(self.lent, named)
        if self.step == 1 and self.perturb is not None:
            self._perturb(self.perturb, named)
        self._every("weight", tuple(map(id, roots)), [(*each, each[1]) for each in named], sketched=self.step == 1)
        self._settle()  # the only wait of a step
        if any(each() for each in self.moved):  # their sketches are made of what they are now
            self.lines.write()
        self.moved = []

    def _registered(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        """Hears of each parameter as a module gets it: one that two modules get is tied, whatever wraps them later."""
        if parameter is None or torch.compiler.is_compiling() or self.step:
            return
        place = (weakref.ref(module), name)
        known, holder = self._holders.get(id(parameter), (None, place))
        if known is None or known() is not parameter:
            self._holders[id(parameter)] = (weakref.ref(parameter), place)
        elif holder[0]() is not module or holder[1] != name:
            self._tied.append((holder, place))

    def _full_name(self, module: Any, name: str) -> str:
        inside = self.modules.get(id(module()), "")
        return f"{inside}.{name}".removeprefix("(root).")

    def _write_untied(self) -> None:
        for pair in self._tied:
            modules = [each() for each, _ in pair]
            if all(id(each) in self.modules for each in modules):
                one, other = (getattr(each, name, None) for each, (_, name) in zip(modules, pair, strict=True))
                if isinstance(one, Tensor) and isinstance(other, Tensor) and one is not other:
                    self._add("untied", step=self.step, names=[self._full_name(*each) for each in pair])

    def _lend(self, lent: Mapping[str, Whole], named: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Begin with the weights of another run."""
        for label, parameter in named:
            for name, mine in self._parts(label, parameter):
                whole = lent[name].values if name in lent else None
                if whole is None or tuple(whole.shape) != mine.shape or mine.pieces is None:
                    self._miss("weights that the other trace does not lend")
                    continue
                for piece in mine.pieces:
                    taken = whole[grid([each.clamp(min=0) for each in piece.indices])].to(mine.local)
                    view = mine.local.data.reshape(-1)[piece.start : piece.start + piece.numel].view(piece.shape)
                    view.copy_(taken)
            for reader in self.readers:
                reader.renew(parameter)

    def _perturb(self, seed: int, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        for label, parameter in named:
            for name, mine in self._parts(label, parameter) if parameter.is_floating_point() else ():
                local = mine.local
                for piece in mine.pieces or ():
                    at = torch.zeros(piece.shape, dtype=torch.int64)
                    for axis, indices in enumerate(grid(piece.indices)):
                        at = at ^ hashed(key_of(f"{name} {seed}", axis), indices)
                    up = torch.where(at & 1 == 0, torch.inf, -torch.inf).to(local)
                    view = local.data.reshape(-1)[piece.start : piece.start + piece.numel].view(piece.shape)
                    view.copy_(torch.nextafter(view, up))

    def _every_parameter(self, *roots: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of some roots, or of all, each once."""
        seen = set()
        for root in roots or self.roots:
            for name, parameter in self._walked(root).named:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    if id(parameter) not in self.parameters:
                        self.parameters[id(parameter)] = self._called(name, parameter, root)
                    yield self.parameters[id(parameter)], parameter

    def _walked(self, root: nn.Module) -> Walked:
        known = self.walked.get(id(root))
        if known is None or known.root is not root or not known.holds():
            known = self.walked[id(root)] = Walked(root)
        return known

    def _name(self, root: nn.Module, later: bool = False) -> None:
        number, inside = len(self.roots), _wraps(root)
        self.phases.clear()  # what this rank holds first may be others' now
        self.outputs.clear()
        self.roots.append(root)
        self.sample.begin()
        reader = reader_of(root)
        self.readers += [reader] if reader else []
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.replicas = self.replicas or _replicas(root)
        called = {id(each): self._called(name, each, root) for name, each in root.named_parameters()}
        taken = set(self.parameters.values())  # the stages of a rank have names of the whole model, and none twice
        new = {name for each, name in called.items() if each not in self.parameters}
        prefix = f"model{number + 1}." if new & taken else ""
        own, moved = f"model{number + 1}." if number else "(root)", _moved(root, called, inside)
        sharded = (each for each in root.modules() if isinstance(each, FullyShardedDataParallel))
        self.routing += routing.kept(root)
        self.flat.update(id(parameter) for each in sharded for parameter in each.parameters())
        for name, module in root.named_modules():
            held = canonical(name, inside=inside)
            start = next((each for each in moved if f"{held}.".startswith(each)), "")
            held = f"{moved[start]}{held[len(start) :]}".removesuffix(".") if start else held
            self.modules.setdefault(id(module), prefix + held if held else own)
        for each, label in called.items():
            self.parameters.setdefault(each, prefix + label)
        names = {id(each): [name for name, _ in self._parts(self.parameters[id(each)], each)]
                 for each in root.parameters()}  # fmt: skip
        self._add(
            "root", number=number, type=type(root).__name__, replicas=list(_replicas(root)),
            data=list(reader.data() if reader else _data(root)), mean=_takes_the_mean(root),
            apart=sorted(_apart_of(root)), reduces=_reduces(root),
            same=list(reader.same() if reader else _same(root)), sharded=list(_sharded(root)),
            trainable=[name for each in root.parameters() if each.requires_grad for name in names[id(each)]],
            frozen=[name for each in root.parameters() if not each.requires_grad for name in names[id(each)]],
            compiled=any(_compiled(each) for each in root.modules()), later=later,
        )  # fmt: skip
        self._add("code", number=number, **source.of({self.modules[id(each)]: type(each) for each in root.modules()}))

    def _called(self, name: str, parameter: Tensor, root: nn.Module) -> str:
        told = (each.names.get(id(parameter)) for each in self.readers)
        return next((each for each in told if each), canonical(name, inside=_wraps(root)))

    # gradients and optimizers

    def _backward(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            outer, self.inside_backward = not self.inside_backward, True  # a mode of torch functions calls it again
            try:
                first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
                seen = outer and self.on and not self.busy and self.step and not getattr(first, "is_meta", False)
                if seen:
                    with _Apart(self):
                        self._before_backward(first)
                found = before(tensors, *arguments, **named)
                if seen and self.on:
                    with _Apart(self):  # what a recomputation counts again is in it
                        self.lines.written()
                        self.counted = self._counters()
                        self._write_labels()
                        self.sample.keep((each for _, each in self._every_parameter()), _gradient)
                return found
            finally:
                self.inside_backward = not outer

        return backward

    def _before_backward(self, first: Any) -> None:
        self._ends_inside()
        self._write_left(first=self.backward == 0)
        self.backward += 1
        self.tried = None
        if isinstance(first, Tensor) and first.numel() == 1:
            self._add("loss", step=self.step, backward=self.backward, value=self._number(_local(first)))
        self.lines.write(aside=True)

    def _write_left(self, *, first: bool) -> None:
        """Which gradients the step before has left, when the first backward pass begins; where a schedule runs that,
        when the schedule does."""
        if first and self.step > 1 and self.scheduled == (self.microbatch == 0):
            kept = {name: self._kept(_local(grad).any().long()) for name, each in self._every_parameter()
                    if (grad := _gradient(each)) is not None}  # fmt: skip

            def write(step: int = self.step) -> None:
                left = [name for name, each in kept.items() if _told(each)[0]]
                self.writer.add("left", step=step, names=left, count=len(left))

            self.lines.add(write, waits=any(callable(each) for each in kept.values()))

    def _write_labels(self) -> None:
        for number, each in enumerate(self.labels, start=1):
            self._add(
                "labels", step=self.step, backward=self.backward, call=number, classes=each.classes,
                counted=self._number(each.counted), weight=self._number(each.weight), dtype=each.dtype,
            )  # fmt: skip
        self.labels = []

    def _zeroes(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients that are dropped before an optimizer has stepped are of a trial pass, which is of no step."""

        def zero_grad(*arguments: Any, **named: Any) -> Any:
            found = before(*arguments, **named)
            if self.on and not self.busy and self.step and self.backward and not (self.stepped or self.optimizing):
                with _Apart(self):
                    if not any(map(_has_gradient, dict(self._every_parameter()).values())):
                        self._add("dropped", step=self.step, microbatches=self.microbatch, backward=self.backward)
                        self.microbatch, self.backward, self.recounts = 0, 0, True
            return found

        return zero_grad

    def _clip(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, max_norm: float, *arguments: Any, **named: Any) -> Any:
            listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            total = before(listed, max_norm, *arguments, **named)
            kind = arguments[0] if arguments else named.get("norm_type", 2.0)
            if float(kind) == 2.0:
                self._clipped(listed, max_norm, total, given=False)
            return total

        return clip

    def _total(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def total(tensors: Any, norm_type: float = 2.0, *arguments: Any, **named: Any) -> Any:
            self.normed = self.step if float(norm_type) == 2.0 else 0
            return before(tensors, norm_type, *arguments, **named)

        return total

    def _clip_with(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """A norm that is given may be of more gradients, as of all stages, and of another kind unless torch took it."""

        def clip(parameters: Any, max_norm: float, total_norm: Any, *arguments: Any, **named: Any) -> None:
            listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            before(listed, max_norm, total_norm, *arguments, **named)
            if self.normed == self.step and isinstance(total_norm, Tensor):
                self._clipped(listed, max_norm, total_norm, given=True)

        return clip

    def _clipped(self, listed: Sequence[Tensor], most: float, total: Tensor, *, given: bool) -> None:
        if not (self.on and self.step):
            return
        with _Apart(self):
            spread = isinstance(total, DTensor)
            partial = spread and not all(each.is_replicate() for each in total.placements)  # type: ignore[attr-defined]
            self._add(
                "clip", step=self.step, max=float(most), partial=partial, given=given, backward=self.backward,
                first=not spread or placement.held(total).first, norm=self._number(_local(total)),
                names=[self.parameters.get(id(each), "") for each in listed if each.grad is not None],
            )  # fmt: skip

    def _scheduled(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *arguments: Any, **named: Any) -> Any:
            found = before(scheduler, *arguments, **named)
            # what it sets when it is made is not yet what a checkpoint then loads
            optimizer = getattr(scheduler, "optimizer", None)
            for group in optimizer.param_groups if optimizer and self.on and self.step else ():
                self.rates.update((id(each), float(group["lr"])) for each in group["params"])
            return found

        return step

    def _before_torchs_step(self, optimizer: Any, arguments: Any, named: Any) -> Any:
        """An optimizer that is given a closure has gradients after its first call."""
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if not callable(closure) or self.optimizing or not self.on:
            return self._before_step(optimizer)
        self.optimizing += 1
        first = iter([True])

        def computed(*more: Any, **by_name: Any) -> Any:
            found = closure(*more, **by_name)
            if next(first, False):
                self._applied(optimizer)
            return found

        if len(arguments) > 1:
            return (arguments[0], computed, *arguments[2:]), named
        return arguments, {**named, "closure": computed}

    def _before_step(self, optimizer: Any) -> None:
        self.optimizing += 1
        if self.optimizing == 1:
            self._applied(optimizer)

    def _applied(self, optimizer: Any) -> None:
        if not self.on or not self.step or _skips(optimizer):
            return
        with _Apart(self):
            groups = list(_groups(optimizer))
            if any(id(one) not in self.parameters for _, _, group in groups for one in group["params"]):
                for _ in self._every_parameter():
                    pass  # FSDP2 exchanges parameters; their names are those of now
            self._write_sample({id(one): (label, one) for _, number, group in groups
                                for label, one in self._group(number, group)})  # fmt: skip
            for each, number, group in groups:
                held = list(self._group(number, group))
                shown = [(label, one, one.grad) for label, one in held if one.grad is not None]
                written = iter(self._every("gradient", (id(each), number), shown))
                names = []
                for label, parameter in held:
                    if parameter.grad is not None:
                        names += next(written)
                        continue
                    mine = [name for name, _ in self._parts(label, parameter)]
                    for name in mine:
                        self._add("no-gradient", step=self.step, name=name)
                    names += mine
                self._add(
                    "group", step=self.step, optimizer=self._number_of(each), number=number,
                    names=names, lr=_number(float(group.get("lr", 0.0))),
                    told=next((self.rates[id(one)] for one in group["params"] if id(one) in self.rates), None),
                    decay=_number(float(group.get("weight_decay", 0.0) or 0.0)),
                )  # fmt: skip
            self._launch()

    def _write_sample(self, moved: Mapping[int, tuple[str, Tensor]]) -> None:
        found = self.sample.beside(one for _, one in moved.values())
        if found is None:
            return
        places, both, length = found
        told = self._kept(both) if isinstance(both, Tensor) else both

        def part(begin: int, end: int) -> list[float | str]:
            return [*map(_number, _told(told)[begin:end])]

        for key, each in places.items():
            at = ((each.start, each.stop), (length + each.start, length + each.stop))
            before, now = (functools.partial(part, *one) if callable(told) else part(*one) for one in at)
            self._add("applied", step=self.step, name=moved[key][0], before=before, gradient=now)

    def _group(self, number: int, group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
        for at, parameter in enumerate(group["params"]):
            yield self.parameters.get(id(parameter), f"unnamed.{number}.{at}"), parameter

    def _after_step(self, optimizer: Any) -> None:
        self.optimizing = max(0, self.optimizing - 1)
        if self.optimizing or not self.on or not self.step or _skips(optimizer):
            return
        with _Apart(self):
            for each, number, group in _groups(optimizer):
                held = list(self._group(number, group))
                self._every("updated", (id(each), number), [(label, one, one) for label, one in held])
                moments: dict[str, list[tuple[str, Tensor, Tensor]]] = {}
                for label, one in held if hasattr(each, "state") else ():
                    for key, value in each.state.get(one, {}).items():
                        if isinstance(value, Tensor) and value.shape == one.shape and value.is_floating_point():
                            moments.setdefault(key, []).append((label, one, value))
                for key, shown in moments.items():
                    self._every("moment", (id(each), number, key), shown, sketched=False, moment=key)
            self._launch()
            self.lines.written()
            self.stepped = True
            self.writer.flush()

    def _number_of(self, optimizer: Any) -> str:
        if all(each is not optimizer for each in self.optimizers):
            self.optimizers.append(optimizer)
            self.trained_on |= {each.device.type for group in optimizer.param_groups for each in group["params"]}
        number = next(at for at, each in enumerate(self.optimizers, start=1) if each is optimizer)
        return f"{type(optimizer).__name__} {number}"

    # tensors

    def _parts(self, name: str, parameter: Tensor, tensor: Tensor | None = None) -> list[tuple[str, Held]]:
        """This rank's parts of a parameter, or of its gradient or state, by name: a flat parameter is several."""
        shown = parameter if tensor is None else tensor
        for reader in self.readers:
            parts = reader.parts(parameter, shown)
            if parts is not None:
                return parts
        if getattr(parameter, "tensor_model_parallel", False):
            return [(name, placement.unplaced(shown, "a shard of Megatron's layers outside of its models"))]
        if id(parameter) in self.flat:
            return [(name, placement.unplaced(shown, "a flat parameter of FSDP1 that is not sharded"))]
        found = placement.held(shown)
        if not isinstance(shown, DTensor) and self.rank in self.replicas:
            found = replace(found, first=self.rank == self.replicas[0])
        return [(name, found)]

    def _every(
        self, kind: str, key: Any, shown: phases.Shown, *, sketched: bool = True, **more: Any
    ) -> list[list[str]]:
        """Write what each parameter shows, in one go if a device sums them up; the names that it has in the trace."""
        phase = self._phase((kind, sketched, key), shown, more)
        if phase is None:
            return [self._each(kind, self._parts(*each), sketched=sketched, **more) for each in shown]
        locals_ = [tensor.detach() for _, _, tensor in shown] if kind == "weight" else []
        sums = phase.launch(shown)
        if kind == "weight":
            self.moved.append(lambda: self._has_moved(phase, sums))
        if kind == "updated":
            self.read.append(lambda: self.updated.update(phase.bits(sums)))
        self.lines.add(functools.partial(self._write_phase, kind, phase, self.step, sums, locals_), waits=True)
        return [[name] for name, _ in phase.held]

    def _each(self, kind: str, parts: Sequence[tuple[str, Held]], **more: Any) -> list[str]:
        for name, mine in parts:
            self._tensor(kind, mine, name=name, **more)
        return [name for name, _ in parts]

    def _phase(self, key: tuple[str, bool, Any], shown: phases.Shown, more: Mapping[str, Any]) -> phases.Phase | None:
        """The writer of such tensors in one go; None if they are written one by one."""
        if self.readers or self.flat or self.keep or self.full:
            return None
        known = self.phases.get(key)
        if known is not None and known.fits(shown):
            return known
        of = phases.signature(shown)
        there = self._there(shown[0][2]) if of else None
        if of is not None and there is not None:
            known = phases.made(there, key[0], of, [self._parts(*each) for each in shown], key[1], more)
            if known is not None:
                self.phases[key] = known
            return known
        return None

    def _write_phase(
        self, kind: str, phase: phases.Phase, step: int, sums: device.Sums, kept: Sequence[Tensor]
    ) -> None:  # fmt: skip
        moved = kind == "weight" and self._has_moved(phase, sums)
        if not moved and phase.write(self.writer, step, sums):
            return
        numbers = itertools.count()
        for at, ((_, mine), line) in enumerate(zip(phase.held, phase.lines(step), strict=True)):
            told = sums.sketches[next(numbers)] if phase.sketched[at] else None
            held = replace(mine, local=kept[at]) if kept else mine
            self._write_tensor(kind, line, held, sums.squares[at], sums.bits[at], told, phase.sketched[at])

    def _has_moved(self, phase: phases.Phase, sums: device.Sums) -> bool:
        """Whether a weight has other bits than its update, which may not be written yet."""
        return any(self.updated.get(name, bits) != bits for name, bits in phase.bits(sums).items())

    def _tensor(self, kind: str, mine: Held, *, sketched: bool = True, **more: Any) -> None:
        local = mine.local.detach()
        if mine.pieces is None:
            self._miss(f"{kind}s that cannot be placed: {mine.part}")
            unread = bool(placement.unknown(local)) and not local.is_sparse
            squares = 0.0 if unread else _squares(local.coalesce().values() if local.is_sparse else local)
            return self._add(kind, step=self.step, shape=list(mine.shape), dtype=_dtype(local), placed=False,
                                   squares=_number(squares), unread=unread, **more)  # fmt: skip
        line = {"step": self.step, "shape": list(mine.shape), "dtype": _dtype(local), "part": mine.part,
                "partial": mine.partial, **more}  # fmt: skip
        batched, wanted = bool(more.get("batched")), sketched and mine.first
        pieces = mine.pieces
        there = None if batched else self._there(local, pieces)
        if there is None:
            if batched:  # its rows may be known on a device
                pieces = tuple(each.cpu() for each in pieces)
                mine = replace(mine, pieces=pieces)
            # a batch has its rows in another order on another layout: its bits say nothing
            bits = "" if batched else f"{fingerprint(local, pieces):016x}"
            return self._write_tensor(kind, line, mine, _squares(local), bits, None, sketched)
        asked = there.ask(local, pieces, sketch=wanted)
        if wanted and self._keeps(kind, line):
            line["values"] = self._values(kind, mine)
        if kind == "weight":
            self.moved.append(lambda: True)
        else:
            mine = replace(mine, local=phases.NOTHING)  # which must not live on with its line

        def write() -> None:
            told = asked.sketch if wanted else None
            self._write_tensor(kind, line, mine, asked.squares, asked.bits, told, sketched)

        return self.lines.add(write, waits=True)

    def _write_tensor(
        self, kind: str, line: dict[str, Any], mine: Held, squares: float, bits: str,
        told: Tensor | None, sketched: bool,
    ) -> None:  # fmt: skip
        """Write the line of a tensor, with its sketch if it is to have one; `told` is that if a device has made it."""
        known = (line.get("name", ""), line["dtype"])
        if kind == "updated":
            self.updated[known] = bits
        if kind == "weight":  # one that moved since its update is to be told from rounding
            sketched = sketched or self.updated.get(known, bits) != bits
        number, kept = None, line.pop("values", None)
        if sketched and mine.first and math.isfinite(squares):
            number = self.writer.sketch(sketch(mine.local, mine.pieces or ()) if told is None else told)
            if kept is None and self._keeps(kind, line):
                kept = self._values(kind, mine)
        values = {"values": kept} if kept and number is not None else {}
        self._add(kind, **line, bits=bits, squares=_number(squares), sketch=number, **values)

    def _keeps(self, kind: str, line: Mapping[str, Any]) -> bool:
        """Whether a tensor is written whole."""
        first = self.keep and kind == "weight" and line["step"] == 1
        named = any(fnmatch.fnmatchcase(line["name"], each) for each in self.full)
        return kind != "forward" and (first or named)

    def _values(self, kind: str, mine: Held) -> list[int] | None:
        held = [(piece.start, piece.indices) for piece in mine.pieces or ()]
        return self.writer.values(mine.local, held, limited=not (self.keep and kind == "weight" and self.step == 1))

    # lines that a device fills

    def _there(self, tensor: Tensor, pieces: Sequence[Piece] | None = None, *, batched: bool = False) -> Any:
        """The device that sums a tensor up, or keeps its numbers; None if that is done here and now."""
        if not device.here(tensor) or (pieces is not None and not device.sums_up(tensor, pieces, batched=batched)):
            return None
        if tensor.device not in self.devices:
            self.devices[tensor.device] = device.of(tensor.device)
        return self.devices[tensor.device]

    def _kept(self, tensor: Tensor) -> Any:
        """Numbers as a list; a function that reads them after the step, if they are on a device."""
        there = self._there(tensor)
        if there is None:
            return tensor.reshape(-1).tolist()
        kept = there.keep(tensor)
        return functools.cache(lambda: kept().tolist())

    def _number(self, tensor: Tensor) -> Any:
        """A number as JSON has it; a function that reads it after the step, if it is on a device."""
        found = self._kept(tensor)
        return (lambda: _number(found()[0])) if callable(found) else _number(found[0])

    def _add(self, kind: str, /, **more: Any) -> None:
        """Write a line, in its turn."""
        waits = any(callable(each) for each in more.values())
        self.lines.add(lambda: self.writer.add(kind, **{name: _told(each) for name, each in more.items()}), waits=waits)

    def _launch(self) -> None:
        for each in filter(None, self.devices.values()):
            each.launch()

    def _settle(self) -> None:
        """Wait for the devices. Lines that waited for them can be written then, and are when they are at work again."""
        self.lines.write()
        for each in filter(None, self.devices.values()):
            each.read()
        for done in self.read:
            done()
        if self.lines.waiting:
            self.lines.waiting.append(self.writer.flush)
        self.lines.filled, self.read = len(self.lines.waiting), []

    def _miss(self, what: str) -> None:
        self.unseen[what] = self.unseen.get(what, 0) + 1

    def heard(self, found: Collective) -> None:
        """A collective that the script issued."""
        key = "-".join(map(str, found.members))
        self.collectives.setdefault(key, []).append(found.said())
        if self.optimizing and found.op in _REDUCE:
            self.reduced += sum(map(math.prod, found.shapes))
        elif (
            self.running
            and not _recomputed()
            and any(
                "float" in dtype and len(shape) > 1 for shape, dtype in zip(found.shapes, found.dtypes, strict=False)
            )
        ):  # a stream, and no statistics of a norm
            self.within.add(key)

    def receives(self, tensors: Sequence[Tensor]) -> None:
        """A message that a pass waits for before a module has an output, as a ring of attention does not: a stage that
        gets its stream so is given its labels at most, which say nothing of its rows."""
        first = self.running and self.blind and not self.calls and not _recomputed()
        if first and any(each.is_floating_point() for each in tensors):
            self.received, self.rows = True, None
            self._miss("inputs of a stage of a pipeline that is given no ids")

    def weighed(self, arguments: Sequence[Any]) -> None:
        """The backward pass of a loss over labels; not one that torch tries out on tensors without numbers."""
        if all(type(each) is Tensor for each in arguments[:3]):
            with _Apart(self):
                found = consumed.weighed(arguments)
                if found is None:
                    self._miss("losses whose labels weigh differently")
                else:
                    self.labels.append(found)

    def _write_collectives(self) -> None:
        for group, said in self.collectives.items():
            digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
            self._add(
                "collectives", step=self.step, group=group, said=said[:MOST_COLLECTIVES], count=len(said), digest=digest
            )
        self.collectives = {}


class _Apart:
    """The recorder's own work is not observed, leaves no graph, and does not end the script."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.graph = recorder, torch.is_grad_enabled()
        self.plainly = torch._C.DisableTorchFunctionSubclass()  # of a tensor of the script's own class
        self.elsewhere = torch.device("cpu") if torch.get_default_device().type != "cpu" else None
        mode = recorder.mode  # through which each operator would go
        self.mode = mode if mode is not None and _get_current_dispatch_mode() is mode else None

    def __enter__(self) -> None:
        self.recorder.busy = True
        if self.mode is not None:
            _pop_mode()  # private, as the stack is; torch 2.5 - 2.13
            self.mode.out = True
        self.plainly.__enter__()
        torch.set_grad_enabled(False)
        if self.elsewhere is not None:  # the tables of sketches are made on the CPU
            self.elsewhere.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if self.elsewhere is not None:
            self.elsewhere.__exit__(None, None, None)
        torch.set_grad_enabled(self.graph)
        self.plainly.__exit__(None, None, None)
        if self.mode is not None:
            self.mode.comes_back()
        self.recorder.busy = False
        if isinstance(error, Exception):
            self.recorder.fails(error)
            return True
        return False


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Hears the collectives of this process, see `contracts.instruments.traffic`, and what its labels weigh."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder, self.out = recorder, False

    def comes_back(self) -> None:
        """Take its place in torch's stack again, from which it was taken while the recorder works."""
        if self.out:
            _push_mode(self)
            self.out = False

    def leave(self) -> None:
        """Leave torch's stack. If others lie above, it stays, and hears no more."""
        self.comes_back()
        if _get_current_dispatch_mode() is self:  # private; torch 2.5 - 2.13
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile compiles under this mode as it does without it; other modes make it run eagerly."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its collectives are issued one level below
        recorder = self.recorder
        if recorder.on and not recorder.busy and func.namespace in NAMESPACES:
            try:
                found = collective(func, args, kwargs or {})
            except Exception:  # an operator that the reader does not know; it runs all the same
                recorder._miss(f"collectives that cannot be read: {func}")
            else:
                if found is not None:
                    recorder.heard(found)
                elif func in _RECEIVED:
                    recorder.receives(args[0])
        elif func in consumed.LABELS and recorder.on and not recorder.busy and recorder.step:
            recorder.weighed(args)
        elif func in consumed.DROPOUT and recorder.buffers is not None and not recorder.busy:
            recorder.drops = recorder.evaluates
        return func(*args, **(kwargs or {}))


_NO_MODE: _Dispatched | None = None
_POSITIVE = (1 << 63) - 1
_RECEIVED = (torch.ops.c10d.recv_.default, torch.ops.c10d.recv_any_source_.default)
_REDUCE = frozenset({"all_reduce", "reduce_scatter", "reduce"})


def _persistent(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers of a module that a checkpoint keeps; private, since torch's own way takes ten times as long for
    modules without any; torch 1.6 - 2.13."""
    for name, each in module._buffers.items():
        if each is not None and name not in module._non_persistent_buffers_set:
            yield name, each


def _recomputed() -> bool:
    """Whether a module runs inside a backward pass, as recomputation does."""
    return torch._C._current_graph_task_id() != -1


def _tensors(given: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(given, Tensor):
        yield name, given
    elif isinstance(given, Mapping) and depth < 4:
        for key, each in given.items():
            yield from _tensors(each, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(given, (list, tuple)) and depth < 4:
        for at, each in enumerate(given):
            yield from _tensors(each, f"{name}.{at}" if name else str(at), depth + 1)


def _rows(tensors: Mapping[str, Tensor], later: bool) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]]:
    """A number for each row of a batch, of its contents; one of its ids only, since the first stage of a
    pipeline may be given no more; and the leading sizes of a batched output. If there are only ids, both are one.

    A mask of (1 or rows, 1, length, length) beside tensors of that length counts for none: where there is one row,
    nobody can know whether the mask is of that row or of all. An attention mask says where a row has padding, which
    is none of its contents.
    """
    local = {name: _local(each) for name, each in tensors.items() if each.dim() > 0 and each.numel()}
    lengths = {each.shape[1] for each in local.values() if each.dim() in (2, 3)}
    local = {name: each for name, each in local.items()
             if each.dim() != 4 or each.shape[1] != 1 or not lengths.issuperset(each.shape[2:])}  # fmt: skip
    mask = next((each for name, each in local.items() if _last(name) == "attention_mask" and each.dim() == 2), None)
    local = {name: each for name, each in local.items() if _last(name) not in cut.BESIDE} or local
    if not local:
        return None, None, ()
    first = next((each for _, each in sorted(local.items()) if not each.is_floating_point()), None)
    first = next(each for _, each in sorted(local.items())) if first is None else first
    count = first.shape[0]
    tokens = tuple(first.shape[:2]) if not first.is_floating_point() else (count,)
    held = {name: each for name, each in local.items() if each.shape[0] == count and not each.is_complex()}
    place = next(iter(held.values())).device if _on_one_device(held.values()) else torch.device("cpu")
    numbers = _numbers([_summed(each, count, mask, place) for each in held.values()])
    rows, own = numbers[0], dict(zip(held, numbers[1:], strict=True))
    # by its name, or the first that is no mask
    whole = {name: each for name, each in held.items() if each.dtype in (torch.int64, torch.int32)}
    named = next((name for name in whole if name.endswith("input_ids")), "")
    if len(local) == 1:
        return rows, rows, tokens
    if not named and device.here(rows) and not later:  # the device knows which is no mask; nothing waits for it
        ids = rows
        for name in reversed(whole):
            ids = torch.where((whole[name] > 1).any(), own[name], ids)
        return rows, ids, tokens
    found = named or next((name for name, each in whole.items() if bool((each > 1).any())), "")
    return rows, own[found] if found else rows, tokens


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _on_one_device(tensors: Iterable[Tensor]) -> bool:
    """Whether one device sums up what is on it; else the CPU does."""
    held = list(tensors)
    return len({each.device for each in held}) == 1 and all(map(device.here, held))


def _summed(tensor: Tensor, count: int, mask: Tensor | None, place: torch.device) -> Tensor:
    """A number for what each row has of a tensor; what a mask leaves out does not count."""
    flat = tensor.detach().to(place).reshape(count, -1)
    values = (flat.double().view(torch.int64) if flat.is_floating_point() else flat.to(torch.int64)) + 1
    odd = device.odd(flat.shape[1], place)
    if mask is not None and tensor.shape == mask.shape:
        kept = mask.detach().to(place) != 0
        odd, values = odd[(kept.cumsum(1) - 1).clamp(min=0)], values * kept
    return (values * odd).sum(1)


def _numbers(summed: Sequence[Tensor]) -> Tensor:
    """A number for each row, whatever its tensors are called and in which order they are given; and then one of each
    tensor by itself."""
    each = torch.stack([*summed])
    each = each * (each ^ _ROW)
    return hashed(_ROW, torch.cat([each.sum(0, keepdim=True), each])) & _POSITIVE


_SCHEDULED = frozenset({"forward_one_chunk"})  # of torch.distributed.pipelining's stages; torch 2.5 - 2.13
_TRIED = frozenset({"_forward_metadata_inference", "_shape_inference"})  # torch 2.13; torch 2.6 - 2.12


def _callers() -> set[str]:
    """The names of the functions that are running."""
    found, frame = set(), sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        found.add(frame.f_code.co_name)
    return found


def _later(root: nn.Module, tensors: Mapping[str, Tensor], *, scheduled: bool) -> bool:
    """Whether a root is a stage of a pipeline after the first: Megatron's say so, others are given a stream that they
    send a gradient back for. A gradient by the data is of no stage."""
    inner: Any = root
    while isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    if type(inner).__module__.startswith("megatron.") and hasattr(inner, "pre_process"):
        return not inner.pre_process
    received = any(each.requires_grad and each.is_leaf for each in tensors.values())
    wrapped = isinstance(root, (DistributedDataParallel, FSDPModule, FullyShardedDataParallel))
    return received and dist.is_initialized() and (scheduled or not wrapped)


def _moved(root: nn.Module, called: Mapping[int, str], inside: bool) -> dict[str, str]:
    """Where a reader numbers the layers of a stage as the whole model does: its own number → that one."""
    found, layer = {}, re.compile(r".*?layers\.\d+\.")
    for name, each in root.named_parameters():
        own, told = layer.match(canonical(name, inside=inside)), layer.match(called[id(each)])
        if own and told and own[0] != told[0]:
            found[own[0]] = told[0]
    return found


def _random_state(module: nn.Module) -> str:
    """A digest of the random state of the device that a module is on."""
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return hashlib.sha256(state.numpy().tobytes()).hexdigest()[:16]


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else torch.as_tensor(tensor)


def _squares(local: Tensor) -> float:
    if not local.numel():
        return 0.0
    # torch copies what it takes a norm of in another dtype, whole on a CPU
    chunks = (each.double() for each in torch.split(local.detach().reshape(-1), CHUNK))
    return sum(float(torch.dot(each, each)) for each in chunks)


def _groups(optimizer: Any) -> Iterator[tuple[Any, int, Mapping[str, Any]]]:
    """The groups of an optimizer with their numbers; of one that keeps others, as torchtitan's, those of the others."""
    inside = [each for each in getattr(optimizer, "optimizers", ()) if isinstance(each, Optimizer)]
    for each in inside or [optimizer]:
        for number, group in enumerate(each.param_groups):
            yield each, number, group


def _skips(optimizer: Any) -> bool:
    """Whether a scaler made a fused optimizer leave this step out."""
    return bool(getattr(optimizer, "found_inf", None))


def _schedulers(base: Any) -> Iterator[Any]:
    """The classes of schedulers that have a `step` of their own."""
    if "step" in vars(base):
        yield base
    for each in base.__subclasses__():
        yield from _schedulers(each)


def _gradient(parameter: Tensor) -> Tensor | None:
    """A parameter's gradient, where its stack adds it up elsewhere too."""
    kept: Tensor | None = getattr(parameter, "main_grad", None)
    return parameter.grad if kept is None else kept


def _has_gradient(parameter: Tensor) -> bool:
    found = _gradient(parameter)
    return found is not None and (found.device.type != "cpu" or bool(_local(found).any()))


def _told(value: Any) -> Any:
    """A value, or what a function says that reads it."""
    return value() if callable(value) else value


def _number(value: float) -> float | str:
    """A number as JSON has it; what is not finite as its name."""
    return value if abs(value) < float("inf") else str(value)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether a module of torch computes otherwise in evaluation mode."""
    dropped = module.p > 0 if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
    return isinstance(module, _NormBase) or (isinstance(dropped, (bool, float)) and dropped > 0)


def _compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"


def _wraps(root: nn.Module) -> bool:
    megatron = type(root).__module__.startswith("megatron.") and isinstance(getattr(root, "module", None), nn.Module)
    deepspeed = type(root).__module__.startswith("deepspeed.")
    return megatron or deepspeed or isinstance(root, (DistributedDataParallel, nn.DataParallel))


def _replicas(root: nn.Module) -> tuple[int, ...]:
    """The ranks that DDP keeps equal; empty for any other module."""
    if isinstance(root, DistributedDataParallel) and dist.is_initialized():
        return tuple(dist.get_process_group_ranks(root.process_group))
    return ()


def _takes_the_mean(root: nn.Module) -> bool:
    """Whether DDP reduces gradients itself, and so takes their mean over ranks."""
    return isinstance(root, DistributedDataParallel) and not root._comm_hooks  # private; torch 2.1 - 2.13


def _apart_of(root: nn.Module) -> set[str]:
    """The names of parameters and buffers that DDP was asked to ignore."""
    found: Iterable[str] = getattr(root, "parameters_to_ignore", ())
    return {canonical(each) for each in found} if isinstance(root, DistributedDataParallel) else set()


def _reduces(root: nn.Module) -> str:
    """The dtype in which FSDP or DDP was asked to add gradients up; empty if nobody said."""
    policy: Any = getattr(root, "mixed_precision", None)
    if isinstance(root, FSDPModule):
        policy = getattr(root._get_fsdp_state(), "_mp_policy", None)  # private; torch 2.6 - 2.13
    return str(getattr(policy, "reduce_dtype", None) or "").removeprefix("torch.")


def _data(root: nn.Module) -> tuple[int, ...]:
    """The ranks that share a batch between them, where DDP or FSDP2 says so: of one axis, or, if it replicates what it
    shards (HSDP), of two, the first of which another axis of the model (TP) would cut."""
    if isinstance(root, FSDPModule):
        for each in root.parameters():
            axes = each.device_mesh.ndim if isinstance(each, DTensor) else 0
            if axes == 1 or (axes == 2 and each.placements[0].is_replicate()):  # type: ignore[attr-defined]
                return tuple(each.device_mesh.mesh.reshape(-1).tolist())  # type: ignore[attr-defined]
    return _replicas(root)


def _sharded(root: nn.Module) -> tuple[int, ...]:
    """The ranks of the only mesh, of one axis, over which a model is sharded that no FSDP shards."""
    held = [each for each in root.parameters() if isinstance(each, DTensor)]
    meshes = {each.device_mesh for each in held}
    if len(meshes) != 1 or all(each.placements[0].is_replicate() for each in held):
        return ()
    mesh = meshes.pop()
    mine = mesh.ndim == 1 and not any(isinstance(each, FSDPModule) for each in root.modules())
    return tuple(mesh.mesh.tolist()) if mine else ()


def _same(root: nn.Module) -> tuple[int, ...]:
    """The ranks that consume the same rows as this one: those of a mesh's axis "tp", where its DTensors name one."""
    for each in root.parameters():
        names = each.device_mesh.mesh_dim_names or () if isinstance(each, DTensor) else ()
        coordinate = each.device_mesh.get_coordinate() if "tp" in names else None  # type: ignore[attr-defined]
        if coordinate is not None:
            at = tuple(slice(None) if name == "tp" else here for name, here in zip(names, coordinate, strict=True))
            return tuple(each.device_mesh.mesh[at].tolist())  # type: ignore[attr-defined]
    return ()
