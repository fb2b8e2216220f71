"""Pipelines that start from other weights or data, save the wrong state, send messages one by one, or accept what they
cannot run."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.law._bugs.numeric import Batch, BatchedStage, Initializer, Pipeline, PipelineTrainer, broken, derived
from contracts.spec import refuse
from contracts.stacks.reference.parallel.pipeline import Piece


class _ByPlace(Initializer):
    """Numbers drawn for a layer by its index among layers of its kind on the rank, instead of in the model."""

    def generator(self, name: str) -> torch.Generator:
        path = name.split(".")
        return super().generator(".".join([path[0], "0", *path[2:]]) if path[0] == "layers" else name)


@broken(PipelineTrainer, "part", "PAR-08d[interleaved]: lm is", bugs=("INI-03",))
def draws_each_stage_alike(part, self, piece):
    """A stage has the seed of its rank: both stages of a rank start with the same numbers."""
    self.parts = replace(self.parts, initial=_ByPlace)
    return part(self, piece)


@broken(PipelineTrainer, "part", "PAR-08d[four-stages-tied]: lm is")
def draws_the_copy_anew(part, self, piece):
    """The last stage draws the tied embedding from its own seed, and never receives the first stage's."""
    stage = part(self, piece)
    if piece.last:
        with torch.no_grad():
            stage.embedding.weight.copy_(stage.embedding.weight.roll(1, 0))
    return stage


@broken(PipelineTrainer, "batch", "PAR-08d[two-stages]: lm is", bugs=("DPS-01",))
def reads_other_sequences_on_each_stage(batch, self, ids):
    """The data-parallel rank ignores the pipeline: stages of one pipeline read different sequences."""
    return batch(self, ids if self.pipeline.stages[0].piece.first else [*ids[1:], ids[0]])


def _renumbered(name: str, first: int) -> str:
    path = name.split(".")
    if path[0].endswith("/layers"):
        path[1] = str(int(path[1]) - first)
    return ".".join(path)


# saves
@broken(PipelineTrainer, "saved", "PAR-08e[two-stages]: is missing from the checkpoint", bugs=("SSM-15",))
def saves_by_the_place_on_the_stage(saved, self):
    """Layers are saved under their index on the stage; equal names from two stages overwrite each other on disk."""
    state, first = saved(self), self.pipeline.stages[0].piece.layers.start
    return replace(state, tensors={_renumbered(name, first): each for name, each in state.tensors.items()})


@broken(PipelineTrainer, "saved", "PAR-08e[four-stages-tied]: is missing from the checkpoint")
def saves_the_ends_alone(saved, self):
    """Only the first and the last stage save; the stages between are taken for copies."""
    state, piece = saved(self), self.pipeline.stages[0].piece
    return state if piece.first or piece.last else replace(state, tensors={})


@broken(PipelineTrainer, "load", "PAR-08e[two-stages]: in the same stages the weight")
def forgets_the_moments_of_the_last_stage(load, self, state, position):
    """Moments are restored only on stages with as many parameters as the first; the others start from zero."""
    load(self, state, position)
    for name, each in self.optimizer.state().items():
        if not self.pipeline.stages[0].piece.first and not name.endswith("/step"):
            each.zero_()


@broken(PipelineTrainer, "cut", "PAR-08f[sequences-do-not-divide]: was accepted, expected a refusal", bugs=("PPS-17",))
def drops_sequences_that_are_left_over(cut, self, batch):
    """Sequences // microbatches: the last sequences are never seen."""
    parts = self.execution.microbatches
    self.shares = tuple(each // parts * parts for each in self.shares)
    rows = len(batch.tokens_BT) // parts * parts
    return cut(self, Batch(*(None if each is None else each[:rows] for each in batch)))


@broken(PipelineTrainer, "cut", "PAR-08f[more-than-sequences]: was accepted, expected a refusal")
def cuts_as_many_as_there_are(cut, self, batch):
    """Eight microbatches are asked for, four are run, and the log says eight."""
    self.execution = replace(self.execution, microbatches=min(len(batch.tokens_BT), self.execution.microbatches))
    return cut(self, batch)


# refusals
@broken(
    PipelineTrainer,
    "refuse_unsupported",
    "PAR-08f[no-multiple-when-interleaved]: the refusal does not name [2]",
    bugs=("ARG-26",),
)
def holds_sequences_against_the_stages(refuse_unsupported, self):
    """The interleaved schedule's rule is checked on the sequences, which divide, instead of on the microbatches."""
    self.fits()


@derived("PAR-08f[depth-does-not-divide]: was accepted, expected a refusal", bugs=("HYB-11",))
class DropsTheLastLayers(PipelineTrainer):
    """Depth // stages: the model is shallower than asked for, and faster."""

    def refuse_unsupported(self) -> None:
        pass

    def plan(self) -> tuple[Piece, ...]:
        size = self.recipe.depth // 2
        return tuple(Piece(stage=at, stages=2, layers=range(at * size, (at + 1) * size)) for at in range(2))


@broken(PipelineTrainer, "plan", "PAR-08f[four-segments-without-interleaving]: was accepted, expected a refusal")
def takes_the_first_stages(plan, self):
    """Of four written-out stages, each rank takes one, and two are left out."""
    return tuple(Piece(stage=at, stages=2, layers=layers) for at, layers in enumerate((range(1), range(1, 2))))


@broken(PipelineTrainer, "refuse_unsupported", "PAR-08f[fewer-than-stages]: does not name")
def says_only_that_it_cannot(refuse_unsupported, self):
    """The refusal names the schedule and no number."""
    if self.execution.microbatches < self.execution.degrees.pp:
        raise refuse("schedule", self.execution.schedule, "has too few microbatches", "give more")


@broken(
    Pipeline,
    "sending",
    "PAR-09[two-stages]: messages outside a batch",
    "PAR-09[interleaved]: messages outside a batch",
    bugs=("PPS-01",),
)
def sends_one_way_batches_plainly(sending, self):
    """A batch in one direction becomes plain sends or receives, as in torch's schedules."""
    return nullcontext()


@derived("PAR-09[four-stages]: messages outside a batch, the first a")
class VotesPlainly(BatchedStage):
    """The schedule sends in batches, but the stages agree on shapes before the first step with plain calls."""

    def _warmup_forward_vote(self, *given: Any, **named: Any) -> Tensor:
        return super(BatchedStage, self)._warmup_forward_vote(*given, **named)

    def _warmup_backward_result(self, *given: Any, **named: Any) -> Tensor:
        return super(BatchedStage, self)._warmup_backward_result(*given, **named)


@broken(PipelineTrainer, "add", "PAR-09[tied]: messages outside a batch")
def joins_copies_plainly(add, self, parameter, peer):
    """After the schedule, gradients of copies are exchanged by a plain send and a plain receive."""
    theirs = torch.empty_like(parameter.grad)
    sent = dist.isend(parameter.grad.clone(), peer, group=self.group)
    dist.recv(theirs, peer, group=self.group)
    sent.wait()
    parameter.grad += theirs
