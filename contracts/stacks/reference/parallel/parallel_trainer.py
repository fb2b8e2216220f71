"""The trainer on several ranks: each takes its rows of the batch, and sums what the others found.

Losses are sums divided by counts of the whole batch over all ranks, so that gradients are sums too and nothing is ever
averaged. What is asked of a run is answered with whole tensors, on every rank.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from contracts.spec import Degrees, NotOffered, Refusals, Refused, refuse
from contracts.spec.divisibility import refusals_on
from contracts.stacks.kit.roles import of_experts
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.data import Corpus
from contracts.stacks.reference.model.build import build_model
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.optim.optimizer import Muon, Optimizer, orthogonalise
from contracts.stacks.reference.parallel.collectives import all_reduce_in_place, sum_over_ranks
from contracts.stacks.reference.parallel.mesh import TrainingMesh
from contracts.stacks.reference.parallel.parallelize import parallelize
from contracts.stacks.reference.parallel.placements import (
    from_local_part,
    full_tensors,
    local_part,
    placed_copy,
    placed_zeros,
    shard_like,
    sharded_mesh_dims,
)
from contracts.stacks.reference.training.trainer import GENERATORS, OWN, Batch, Trainer


class ShardedAdamW(torch.optim.AdamW):
    """AdamW over the parts that this rank holds: it moves each element by itself.

    Asked of whole DTensors each operation works out first where its result lies, which takes longer than the step.
    """

    def _init_group(self, group: dict[str, Any], *tensors: list[Tensor]) -> bool:
        """Private in torch: parameters, gradients and moments of a group as `step` uses them. Seen in 2.0 to 2.13."""
        for parameter in group["params"]:
            state = self.state[parameter]
            if not state and isinstance(parameter, DTensor):
                state["step"] = torch.zeros((), dtype=torch.get_default_dtype())
                for moment in ("exp_avg", "exp_avg_sq"):
                    state[moment] = placed_zeros(parameter)
        is_complex: bool = super()._init_group(group, *tensors)  # type: ignore[no-untyped-call]  # torch's
        for held in tensors:
            held[:] = [local_part(each) for each in held]
        return is_complex


class ShardedMuon(Muon):
    """Muon over matrices of which each rank has a part: gathered, orthogonalized whole, and the part taken back.

    An expert that lies whole on a rank is orthogonalized there.
    """

    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        if not isinstance(grad, DTensor):
            return super().direction(grad, buffer, momentum)
        moved = local_part(buffer).mul_(momentum).add_(local_part(grad))
        ahead = from_local_part(local_part(grad) + momentum * moved, grad)
        if ahead.dim() > 2 and all(_keeps_matrices(at) for at in ahead.placements):
            return from_local_part(orthogonalise(local_part(ahead)), ahead)
        (gathered,) = full_tensors({"": ahead}).values()
        return from_local_part(shard_like(orthogonalise(gathered), ahead), ahead)


def _keeps_matrices(at: Placement) -> bool:
    """Whether a placement of a stack of matrices cuts none of them."""
    return at.is_replicate() or getattr(at, "dim", None) == 0


class ShardedOptimizer(Optimizer):
    """The rules over parameters on several meshes. Their state lies as they do."""

    adamw: type[torch.optim.AdamW] = ShardedAdamW
    muon: type[Muon] = ShardedMuon

    def clip(self) -> tuple[float, float]:
        parameters = [member.parameter for member in self.members]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = placed_zeros(parameter)
        norm = self.norm()
        coefficient = self.coefficient(norm)
        for parameter in parameters if coefficient < 1 else ():
            assert parameter.grad is not None
            local_part(parameter.grad).mul_(coefficient)
        return norm, coefficient

    def norm(self) -> float:
        """Of all gradients, whole, each once."""
        return self.norm_of([member.parameter for member in self.members])

    def norm_of(self, parameters: Iterable[nn.Parameter]) -> float:
        """Squares of what this rank holds, summed over the ranks that hold other parts of the same tensors.

        torch's own `get_total_norm` stacks norms of one mesh only, and sends one message a tensor.
        """
        squares: dict[tuple[Any, ...], list[Tensor]] = {}  # by the groups over which they are summed
        for parameter in parameters:
            grad = parameter.grad
            if grad is not None:
                groups: tuple[Any, ...] = ()
                if isinstance(grad, DTensor):
                    groups = tuple(grad.device_mesh.get_group(dim) for dim in sharded_mesh_dims(grad))
                squares.setdefault(groups, []).append(local_part(grad).double().square().sum())
        sums = []
        for groups, each in squares.items():
            square = torch.stack(each).sum()
            for group in groups:
                square = sum_over_ranks(square, group)
            sums.append(square)
        return float(torch.stack(sums).sum().sqrt())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """`state` has whole tensors; each rank keeps its part of them."""
        parameters = {member.name: member.parameter for member in self.members}
        held = {}
        for key, value in state.items():
            like = parameters.get(key.rpartition("/")[0])
            held[key] = part_of(value, like) if like is not None and like.shape == value.shape else value
        super().load(held)


class ParallelTrainer(Trainer):
    """One rank of a run over several. The default process group must hold the execution's world."""

    optimizer_class: type[Optimizer] = ShardedOptimizer
    mesh: TrainingMesh
    shares: tuple[int, ...] = ()
    """How many sequences the ranks have of the last batch. Each knows all of them, so that all refuse together."""

    def __init__(self, *args: Any) -> None:
        try:
            super().__init__(*args)
        except BaseException:
            self.abandon()
            raise

    def refuse_unsupported(self) -> None:
        if self.execution.degrees.pp > 1:
            raise NotOffered("this trainer has no pipeline: pipeline_trainer.py has")
        self.fits()

    def fits(self) -> None:
        """Refuse what does not divide, and a world that is not there."""
        execution, degrees = self.execution, self.execution.degrees
        if self.recipe.fp8 is not None and max(degrees.tp, degrees.ep) > 1:
            raise NotOffered("FP8 products of matrices that tensor- or expert-parallel ranks share are not built")
        refusals_on(self.recipe, execution.degrees, dp=1).raise_any()
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if execution.world != ranks:
            raise refuse("world", execution.world, f"is not the number of ranks ({ranks})", "start as many ranks")

    def build(self) -> Model:
        self.mesh = TrainingMesh(self.execution)
        alone = replace(self.execution, degrees=Degrees(), world=1, fsdp=False, compile="none", recompute=False)
        model = build_model(self.recipe, alone, self.parts)
        self.wrapped = parallelize(model, self.execution, self.mesh, self.parts)
        return model

    # rows
    def batch(self, ids: Sequence[int]) -> Batch:
        """Only the rows of this rank are read."""
        return super().batch(self.own(ids))

    def share(self, batch: Batch) -> Batch:
        rows = self.own(range(len(batch.tokens_BT)))
        cut = [None if each is None else each[rows[0] : rows[-1] + 1] for each in batch]
        return Batch(*cut)  # type: ignore[arg-type]  # documents alone may be None

    def own(self, rows: Sequence[int]) -> Sequence[int]:
        """This rank's run of rows: the ranks share them in their order, the first ranks one more where need be."""
        members = self.mesh.place("rows")
        each, more = divmod(len(rows), len(members))
        if not each:
            raise refuse("sequences", len(rows), f"must be dp ({len(members)}) at least", "give every rank one")
        self.shares = (each, each + 1) if more else (each,)
        at = members.index(self.mesh.rank)
        first = at * each + min(at, more)
        return rows[first : first + each + (at < more)]

    def cut(self, batch: Batch) -> list[Batch]:
        fewest = min(self.shares, default=len(batch.tokens_BT))
        if self.execution.microbatches > fewest:
            problem = f"is more than the sequences of a rank ({fewest})"
            raise refuse("microbatches", self.execution.microbatches, problem, "cut fewer")
        return super().cut(batch)

    def opened(self) -> Corpus:
        """What one rank cannot read, none of them waits for: all refuse, with the rank and its reason."""
        if self.recipe.data.path is None:
            return super().opened()
        found, corpus = Refusals(), None
        try:
            corpus = super().opened()
        except Refused as refused:
            found.extend(refused)
        self.kept(self.recipe.data.path).ranks.refuse_together(found)
        assert corpus is not None, "whoever has none has refused"
        return corpus

    # sums over ranks
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        return _totals(counts, self.mesh.group("rows"))

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses of labels lie with the tokens of a rank; what routers found, with the tokens that each routed."""
        routed = {name: each for name, each in values.items() if not _of_labels(name)}
        labels = {name: each for name, each in values.items() if _of_labels(name)}
        return _totals(labels, self.mesh.group("dp_cp")) | _totals(routed, self.mesh.group("apart"))

    def largest(self, total: Tensor, labels: Tensor, whole: Tensor) -> float | None:
        """The ranks of cp have parts of a rank's rows, and one stage has their loss."""
        for axis in ("cp", "pp"):
            total = sum_over_ranks(total.double(), self.mesh.group(axis))
        mean = total / labels.clamp(min=1)
        dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        return float(mean)

    def reduce(self) -> None:
        """Partial gradients become what their parameters are; without FSDP data-parallel ranks are summed here."""
        trained = {name: each for name, each in self.model.named_parameters() if each.grad is not None}
        summed: dict[Any, list[Tensor]] = {}
        for parameter in trained.values():
            for mesh, dim in completed(parameter):
                summed.setdefault(mesh.get_group(dim), []).append(_held(parameter))
        for name, parameter in trained.items():
            group = self.unreduced(name)
            if group is not None:
                summed.setdefault(group, []).append(_held(parameter))
        for group, grads in summed.items():
            all_reduce_in_place(grads, group)

    def unreduced(self, name: str) -> Any:
        """The ranks whose gradients of a parameter are still to be summed; None where there are none."""
        apart = self.mesh.lane and of_experts(name)
        of_kind = self.mesh.expert if apart else self.mesh.dense
        sharded = self.execution.fsdp and of_kind is not None and "shard" in (of_kind.mesh_dim_names or ())
        return None if sharded else self.mesh.group("edp" if apart else "dp_cp")

    # checkpoints
    def kept(self, folder: str) -> Checkpoints:
        return self.parts.checkpoints(folder, of_ranks=(GENERATORS, OWN))

    def retire(self, folder: str, keep: int, durable: str | None = None) -> None:
        """The first rank removes, and nobody continues before it has; what it refuses, all refuse."""
        found, ranks = Refusals(), self.kept(folder).ranks
        if dist.get_rank() == 0:
            try:
                super().retire(folder, keep, durable)
            except Refused as refused:
                found.extend(refused)
        ranks.refuse_together(found)

    def layout(self) -> dict[str, int]:
        execution, degrees = self.execution, asdict(self.execution.degrees)
        more = {"world": execution.world, "fsdp": execution.fsdp, "replicas": execution.replicas}
        borrowed = {"borrowed": execution.layout == "borrowed"}
        return super().layout() | {name: int(each) for name, each in (degrees | more | borrowed).items()}

    def state(self) -> dict[str, Tensor]:
        """As on one rank; what each rank has seen of its own tensors (FP8's delayed scales) is saved by rank."""
        held = super().state()
        return {f"{self.own_names}{name}" if _is_own(name) else name: each for name, each in held.items()}

    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        super().load({name.removeprefix(self.own_names): each for name, each in state.items()}, position)

    @property
    def own_names(self) -> str:
        return f"{OWN}{dist.get_rank()}/"

    @property
    def own_generators(self) -> str:
        return f"{GENERATORS}{dist.get_rank()}/"

    def stream(self) -> str:
        """Ranks of tp without SP hold the same residual stream, and so do those of ep on an axis of its own."""
        alike = {"ep"} if self.execution.degrees.sp else {"ep", "tp"}
        at = self.mesh.grids.dense.coordinates(dist.get_rank())
        return "".join(f"{axis}{place}" for axis, place in at.items() if axis not in alike)

    def close(self) -> None:
        """Every rank is through with its groups before one takes them down."""
        dist.barrier()
        self.mesh.close()

    def abandon(self) -> None:
        """A peer that still waits in one of the groups hears of it now, and not when its patience ends."""
        if hasattr(self, "mesh"):
            self.mesh.close()

    # whole tensors
    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return full_tensors(tensors)

    def take(self, value: Tensor, into: Tensor) -> None:
        local_part(into).copy_(local_part(part_of(value, into)))


def _held(parameter: nn.Parameter) -> Tensor:
    """What this rank holds of a gradient."""
    assert parameter.grad is not None
    return local_part(parameter.grad)


def completed(parameter: nn.Parameter) -> list[tuple[DeviceMesh, int]]:
    """The dims of the mesh over which a gradient that is a part of a sum has to be summed, as it now says it is.

    A dim over which it has to be cut too is summed and cut at once.
    """
    grad = parameter.grad
    if not isinstance(parameter, DTensor) or not isinstance(grad, DTensor) or grad.placements == parameter.placements:
        return []
    pairs = list(zip(grad.placements, parameter.placements, strict=True))
    open_ = [dim for dim, (have, want) in enumerate(pairs) if have != want]
    if any(not pairs[dim][0].is_partial("sum") or not pairs[dim][1].is_replicate() for dim in open_):
        parameter.grad = grad.redistribute(placements=parameter.placements)
        return []
    parameter.grad = from_local_part(local_part(grad).contiguous(), parameter)
    return [(grad.device_mesh, dim) for dim in open_]


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """What this rank holds of a whole tensor that lies as another does. A DTensor lies so already."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor):
        return placed_copy(value)
    return from_local_part(shard_like(value, like), like)


def _is_own(name: str) -> bool:
    return name.startswith("buffers/") and name.rpartition(".")[2] in ("amax_history", "scale")


def _of_labels(name: str) -> bool:
    return name == "lm" or name.startswith("mtp")


def _totals(values: Mapping[str, Tensor], group: Any) -> dict[str, Tensor]:
    """Sums over ranks by name, in one message for each dtype."""
    found = dict(values)
    for dtype in sorted({each.dtype for each in values.values()}, key=str):
        names = [name for name in sorted(values) if values[name].dtype == dtype]
        flat = sum_over_ranks(torch.cat([values[name].reshape(-1) for name in names]), group)
        for name, piece in zip(names, torch.split(flat, [values[name].numel() for name in names]), strict=True):
            found[name] = piece.view(values[name].shape)
    return found
