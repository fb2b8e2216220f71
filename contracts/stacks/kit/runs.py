"""Runs of a stack's own trainer, seen as a session asks: what each step did, the state after it, what was loaded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from contracts.instruments import numerics, traffic
from contracts.spec import Arrays, NotOffered, Observed, Refusals, Session, Step, Tokens, Trained, refuse
from contracts.stacks.kit.links import Link, to_canonical, to_theirs
from contracts.stacks.kit.tables import MOMENTS

Cut = tuple[DeviceMesh, Sequence[Placement]]
"""Over which ranks a tensor is cut, and how: `Shard(dim)` for an even part along a dim."""


class Watched(ABC):
    """What a session sees of a run, under canonical names.

    A trainer that is driven step by step is a `Run`. One that drives itself calls `note` before it clips and `state`
    after a step.
    """

    def __init__(self, session: Session, links: Sequence[Link]) -> None:
        self.session, self.links = session, links
        self.noted: Arrays = {}
        self._before: dict[str, Tensor] = {}

    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """This process's parameters, by the stack's names; a DTensor stands for the full tensor."""

    def buffers(self) -> Mapping[str, Tensor]:
        """Likewise, of the buffers that are part of the state: a router's bias."""
        return {}

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return ()

    def generators(self) -> Arrays:
        """The states of the random generators, by name."""
        return {}

    def everywhere(self, mine: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Full tensors of this process, and those that other pipeline stages hold."""
        return mine

    def cut(self) -> Mapping[str, Cut]:
        """The parameters that a stack cuts by hand and not as DTensors, and how this rank has a part of each.

        `DeviceMesh.from_group` makes a mesh of a process group.
        """
        return {}

    def laid_out(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by the stack's names, those that are cut as DTensors."""
        cut = self.cut()
        return {name: DTensor.from_local(each, *cut[name], run_check=False) if name in cut else each
                for name, each in theirs.items()}  # fmt: skip

    def canonical(self, theirs: Mapping[str, Tensor]) -> Arrays:
        laid_out = self.laid_out({name: each.detach() for name, each in theirs.items()})
        full = self.everywhere({name: whole(each) for name, each in laid_out.items()})
        return numerics.arrays(to_canonical(full, self.links))

    def wants(self, what: Observed, step: int) -> bool:
        return what in self.session.observe and (not self.session.at or step in self.session.at)

    def note(self, step: int) -> None:
        """Keep the gradients of a step, which are about to be clipped."""
        named = gradients(self.parameters())
        self._before = {name: local(each).clone() for name, each in named.items()}
        self.noted = self.canonical(named) if self.wants("gradients", step) else {}

    def factor(self) -> float:
        """What the gradients were multiplied by since `note`, read off all of them on all ranks."""
        after = gradients(self.parameters())
        pairs = [(local(after[name]).double(), each.double()) for name, each in self._before.items()]
        both = torch.tensor([sum(float((now * was).sum()) for now, was in pairs),
                             sum(float(was.square().sum()) for _, was in pairs)], dtype=torch.float64)  # fmt: skip
        if self.session.execution.world > 1:
            with traffic.unrecorded():
                dist.all_reduce(both)
        return float(both[0] / (both[1] or 1.0))

    def weights(self) -> Arrays:
        return self.canonical(self.parameters())

    def held(self) -> Arrays:
        return self.canonical(self.buffers())

    def moments(self) -> Arrays:
        """The optimizers' state of every parameter, AdamW's and Muon's, as `name/entry`."""
        names = {id(each): name for name, each in self.parameters().items()}
        state = {names[id(each)]: held for one in self.optimizers() for each, held in one.state.items()
                 if id(each) in names}  # fmt: skip
        return {
            f"{name}/{entry}": each
            for entry in (*MOMENTS, "momentum_buffer")
            for name, each in self.canonical({n: held[entry] for n, held in state.items() if entry in held}).items()
        }

    def state(self, step: int) -> dict[str, Any]:
        """What the session observes of the state, as arguments of a `Step`."""
        read: dict[Observed, Callable[[], Arrays]] = {
            "weights": self.weights, "optimizer": self.moments, "buffers": self.held, "rng": self.generators,
        }  # fmt: skip
        return {what: get() for what, get in read.items() if self.wants(what, step)}

    def loaded(self, start: int) -> Step | None:
        """The state before the first step, where a checkpoint was loaded and the session asks for it."""
        if self.session.load is None or 0 not in self.session.at:
            return None
        return Step(number=start, losses={}, tokens=0, lr=0.0, grad_norm=0.0, clip_coef=1.0, **self.state(0))


class Run(Watched):
    """A run that is driven step by step."""

    number = 0
    """Of the last step that was taken."""
    own_rates = False
    """Whether it gives the parameters of `session.rates` rates of their own."""
    own_frozen = False
    """Whether it leaves the parameters of `session.frozen` untrained."""

    @abstractmethod
    def step(self, batch: Tokens) -> Step:
        """Take the next step; call `note` with its number between backward and clipping."""

    def own_step(self) -> Step:
        """Take the next step on the stack's own data, where it has any."""
        raise NotImplementedError

    def save(self, folder: str) -> None:
        """Write a checkpoint as the stack does."""
        raise NotImplementedError

    def load(self, folder: str) -> None:
        """Load the latest of a folder, and set `number` to its step.

        Raises:
            Refused: where there is none, or it does not fit.
        """
        raise NotImplementedError

    def put(self, weights: Arrays, buffers: Arrays) -> None:
        """Copy full tensors in; each rank keeps its part."""
        for what, values, into in (("weights", weights, self.parameters()), ("buffers", buffers, self.buffers())):
            if values:
                held = self.laid_out({name: each.detach() for name, each in into.items()})
                put(what, values, held, self.links, self.everywhere)

    def close(self) -> None:
        """Release what the run holds."""


def trained(run: Run) -> Trained:
    """A session, from its first weights to its last step.

    Raises:
        Refused: for batches that do not number the steps, and for what `put` and `load` refuse.
    """
    session = run.session
    if session.batches and len(session.batches) != session.steps:
        problem = f"must number the steps ({session.steps})"
        raise refuse("batches", len(session.batches), problem, "give one for each step")
    if session.rates and not run.own_rates:
        raise NotOffered("all its parameters have one rate", "adapter")
    if session.frozen and not run.own_frozen:
        raise NotOffered("it trains every parameter", "adapter")
    if session.load is not None:
        run.load(session.load)
    run.put(session.weights, session.buffers)
    start, loaded = run.number, run.loaded(run.number)
    steps = []
    for place in range(session.steps):
        run.noted = {}
        found = run.step(session.batches[place]) if session.batches else run.own_step()
        run.number = found.number
        if run.wants("gradients", run.number) and not run.noted:
            raise RuntimeError(f"no gradients were noted of step {run.number}: call note({run.number}) before it clips")
        steps.append(replace(found, gradients=run.noted, **run.state(run.number)))
        if session.save is not None and run.number in session.save_at:
            run.save(session.save)
    return Trained(start=start, steps=tuple(steps), loaded=loaded)


def put(
    what: str, values: Arrays, into: Mapping[str, Tensor], links: Sequence[Link],
    everywhere: Any = lambda mine: mine,
) -> None:  # fmt: skip
    """Copy full tensors, by canonical name, into a model; of a DTensor each rank keeps its part. Read back to check.

    Nothing is gathered: the step that follows may be watched for what it sends.

    Raises:
        Refused: every name that is missing, unknown or of another shape.
    """
    full = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in into.items()}
    ours, given = to_canonical(everywhere(full), links), numerics.tensors(values)
    found = Refusals()
    for name in sorted(ours.keys() | given.keys()):
        found.unless(name in given, what, name, "is missing", "give every tensor that built() names")
        found.unless(name in ours, what, name, "is no tensor of the model", "use the names that built() gives")
        if name in ours and name in given:
            shapes = tuple(given[name].shape), tuple(ours[name].shape)
            found.unless(shapes[0] == shapes[1], what, name, f"has shape {shapes[0]}", f"give {shapes[1]}")
    found.raise_any()
    theirs = to_theirs(given, links)
    with torch.no_grad():
        for name, target in into.items():
            if name not in theirs:
                continue
            part = theirs[name].to(target.device, target.dtype)
            if isinstance(target, DTensor):
                part = distribute_tensor(part, target.device_mesh, target.placements, src_data_rank=None)
            target.copy_(part)
            if not torch.allclose(local(target.detach()), local(part), rtol=0.0, atol=0.0, equal_nan=True):
                raise RuntimeError(f"{name} was set, and has another value")


def gradients(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each parameter; zero for one that no token reached."""
    return {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in parameters.items()}


def gradients_of(y: Tensor, dy: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of <y, dy>; zero for a leaf that it does not reach."""
    found = torch.autograd.grad((y * dy).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if grad is None else grad for (name, leaf), grad in pairs}


def packed(batch: Tokens) -> bool:
    """Whether a row has more than one document."""
    if batch.documents is None:
        return False
    documents_BT = numerics.tensor(batch.documents)
    return bool((documents_BT != documents_BT[:, :1]).any())


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
