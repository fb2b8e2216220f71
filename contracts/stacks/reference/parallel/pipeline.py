"""Pipeline parallel: ranks hold consecutive layers of one model and pass microbatches along.

A stage is the model without the layers of other stages; the rest keeps its names. The first stage has the embedding.
The last has the final norm, the output projection, the prediction heads, and a copy of the embedding if it needs one
(tied output, or MTP).

Every rank has the whole microbatch: tokens, labels and documents are the same on all stages, and only the residual
stream is sent. The losses of a stage are divided by the counts of the whole window, so gradients add up without
scaling. Auxiliary losses of experts, which are on every stage, enter the backward pass on their own stage.

B sequences · T tokens · D hidden
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from contracts.spec import Execution, Recipe, Refusals, refuse
from contracts.spec import pattern as patterns
from contracts.stacks.reference.model.blocks.common import Packing, packing
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.model.mtp import IGNORED, shift_left
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage, batched, over_torch
from contracts.stacks.reference.training.trainer import Batch

CHUNKS = 2  # stages per rank of an interleaved pipeline whose pattern has no cuts


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The part of the model that is one stage. `layers` are numbers in the whole model, 0-based."""

    stage: int
    stages: int
    layers: range

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1


def pieces(recipe: Recipe, execution: Execution) -> tuple[Piece, ...]:
    """Every stage, in model order. Stage s is on pipeline rank s modulo pp.

    Raises:
        Refused: when the pattern cannot be cut into these stages, or has the cuts of another schedule.
    """
    pp, schedule = execution.degrees.pp, execution.schedule
    pattern = patterns.parse(recipe.pattern, recipe.depth)
    cut = patterns.stages(pattern, pp if pattern.cuts or schedule == "1f1b" else CHUNKS * pp)
    if schedule == "1f1b" and len(cut) != pp:
        problem = f"1f1b has one stage a rank, and the pattern has {len(cut)}"
        raise refuse("pp", pp, problem, "ask for the interleaved schedule, or write fewer stages")
    if schedule == "interleaved" and len(cut) == pp:
        problem = f"interleaved has at least {CHUNKS} stages a rank, and the pattern has {len(cut)} in all"
        raise refuse("pp", pp, problem, "ask for 1f1b, or write more stages")
    ends = [sum(map(len, cut[: stage + 1])) for stage in range(len(cut))]
    return tuple(
        Piece(stage=stage, stages=len(cut), layers=range(end - len(letters), end))
        for stage, (letters, end) in enumerate(zip(cut, ends, strict=True))
    )


def refuse_microbatches(execution: Execution) -> None:
    """
    Raises:
        Refused: for a number of microbatches that the schedule cannot run.
    """
    count, pp, found = execution.microbatches, execution.degrees.pp, Refusals()
    found.unless(count >= pp, "microbatches", count, f"must be pp ({pp}) at least", "cut more")
    if execution.schedule == "interleaved":
        problem = f"must be a multiple of pp ({pp}) in the interleaved schedule"
        found.unless(count % pp == 0, "microbatches", count, problem, "cut another number")
    found.raise_any()


class Passed(NamedTuple):
    """The sums and counters of one stage and microbatch, by name, as in `ModelOutput`."""

    sums: dict[str, Tensor]
    seen: dict[str, Tensor]


class Stage(Model):
    """A part of the model, called with one microbatch. `counts` cover the whole window."""

    piece: Piece
    counts: Mapping[str, Tensor]
    passed: list[Passed]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts, self.passed = {}, []
        self.keep()

    def keep(self) -> None:
        """Remove the modules of other stages. A module without parameters replaces each."""
        for number in list(self.layers):
            if int(number) not in self.piece.layers:
                del self.layers[number]
        if not self.piece.first and not (self.piece.last and self.embeds_again()):
            self.embedding = nn.Identity()  # type: ignore[assignment]  # never called
        if not self.piece.last:
            self.norm = nn.Identity()  # type: ignore[assignment]
            self.head, self.mtp = None, nn.ModuleList()

    def embeds_again(self) -> bool:
        """Whether the last stage also needs the embedding: for tied logits, or for the next tokens (MTP)."""
        return self.head is None or len(self.mtp) > 0

    def forward(self, x: Tensor, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:  # type: ignore[override]  # a stage takes a stream and gives one
        """The residual stream after this stage; on the last stage, its part of the objective, (1,).

        Args:
            x: the residual stream after the previous stage. The first stage ignores it and embeds `tokens_BT`.
        """
        pack = packing(tokens_BT, documents_BT)
        if self.piece.first:
            x = self.widen(self.embed(self.row.own(tokens_BT)))
        x, losses, seen = self.trunk(x, self.row.packing(pack))
        sums = self.auxiliary(losses, tokens_BT)
        if self.piece.last:
            sums |= self.predicted(x, tokens_BT, labels_BT, pack)
        self.passed.append(Passed({name: each.detach() for name, each in sums.items()}, seen))
        part = self.objective(sums, self.counts)["total"]
        if self.piece.last:
            return torch.stack([part])
        return self.carrying(part, x) if sums else x

    def carrying(self, part: Tensor, x: Tensor) -> Tensor:
        """x, with this stage's part of the objective attached to its gradient."""
        return joined(x, part)

    def auxiliary(self, losses: Mapping[str, Tensor], tokens_BT: Tensor) -> dict[str, Tensor]:
        """Sums of the auxiliary losses of this stage's layers, which are means over their inputs."""
        return {name: loss * (len(tokens_BT) if name == "aux" else tokens_BT.numel()) for name, loss in losses.items()}

    def predicted(self, x: Tensor, tokens_BT: Tensor, labels_BT: Tensor, pack: Packing) -> dict[str, Tensor]:
        """Sums of the losses of the output projection and of the prediction heads."""
        hidden_BTD = self.narrow(x)
        sums = {"lm": self.cross_entropy(self.predict(self.norm(hidden_BTD)), self.row.own(labels_BT))[0]}
        for depth, further_BTV in enumerate(self.look_ahead(hidden_BTD, tokens_BT, pack)):
            targets_BT = self.row.own(shift_left(labels_BT, pack, depth + 1, IGNORED))
            sums[f"mtp.{depth}"] = self.cross_entropy(further_BTV, targets_BT)[0]
        return sums


def staged(model: type[Model], piece: Piece, stage: type[Stage] = Stage) -> type[Model]:
    """The model class of a stage."""
    return type("Stage", (stage, model), {"piece": piece})


def joined(x: Tensor, part: Tensor) -> Tensor:
    """x, with a part of the objective attached: when the gradient of x arrives, the part gets the gradient 1."""
    held: Tensor = _Joined.apply(x, part)  # type: ignore[no-untyped-call]  # torch's
    return held


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor) -> Tensor:
        ctx.save_for_backward(part)
        return x.clone()  # not a view: FSDP2 warns about views among its outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (part,) = ctx.saved_tensors
        return grads[0], torch.ones_like(part)


class Chunks(nn.Module):
    """The parameters of all stages of a rank, under their names in the full model, and the objective."""

    def __init__(self, stages: Sequence[Model]) -> None:
        super().__init__()
        held = [dict(stage.named_children()) for stage in stages]
        self.objective = stages[0].objective
        self.layers = nn.ModuleDict({number: each for stage in stages for number, each in stage.layers.items()})
        for children in held:
            for name, child in children.items():
                if name != "layers" and list(child.parameters()):
                    self.add_module(name, child)


class Pipeline:
    """The stages of one rank, and the schedule of their microbatches."""

    stage_class: type[BatchedStage] = BatchedStage

    def __init__(self, stages: Sequence[Stage], execution: Execution, group: Any) -> None:
        self.stages, self.execution, self.group = stages, execution, group
        torch.distributed.barrier(group)  # all ranks of a group must make its first call

    def run(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[Passed]:
        """Forward and backward over the microbatches of a window; the gradients stay in the parameters."""
        for stage in self.stages:
            stage.counts, stage.passed = counts, []
        first, last = self.stages[0].piece.first, self.stages[-1].piece.last
        numbers = torch.arange(len(window))  # cut by the schedule; a stage looks up a number's microbatch
        with self.sending():
            self.schedule(window).step(
                *((numbers,) if first else ()), target=numbers if last else None, return_outputs=False
            )
        return [passed for stage in self.stages for passed in stage.passed]

    def sending(self) -> AbstractContextManager[None]:
        """Inside, the schedule sends messages in batches (pipeline_messages.py)."""
        return batched()

    def schedule(self, window: Sequence[Batch]) -> Any:
        """A schedule for the microbatches of one window; the next window may have other shapes."""
        from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B  # imports torch's compiler

        count, stages = len(window), [self.stage(each, window) for each in self.stages]
        if self.execution.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, count, loss_fn=own_part, scale_grads=False)  # type: ignore[arg-type]
        return Schedule1F1B(stages[0], count, loss_fn=own_part, scale_grads=False)

    def stage(self, stage: Stage, window: Sequence[Batch]) -> BatchedStage:
        piece, streams = stage.piece, [self.stream(stage, micro.tokens_BT) for micro in window]
        (x, *_), tokens_BT = streams, window[0].tokens_BT
        made = over_torch(self.stage_class)(
            stage, piece.stage, piece.stages, tokens_BT.device, group=self.group,
            input_args=tokens_BT if piece.first else x,
            output_args=x.new_empty(1, dtype=torch.promote_types(x.dtype, torch.float32)) if piece.last else x,
        )  # fmt: skip
        made.calls, made.streams = [_named(micro) for micro in window], streams
        return made

    def stream(self, stage: Stage, tokens_BT: Tensor) -> Tensor:
        """The residual stream of a microbatch on the meta device, without memory."""
        rows, length = stage.vocabulary.here(stage.row.own(tokens_BT)).shape
        streams = () if stage.recipe.mhc is None else (stage.recipe.mhc.streams,)
        return torch.empty(
            rows, length, *streams, stage.recipe.hidden, dtype=stage.activations, device="meta", requires_grad=True
        )


def own_part(part_1: Tensor, number_1: Tensor) -> Tensor:
    """The loss function for the schedule: the last stage already returns its loss."""
    return part_1.squeeze(0)


def _named(micro: Batch) -> dict[str, Tensor]:
    """The arguments of a stage besides the stream."""
    return {name: each for name, each in micro._asdict().items() if each is not None}
