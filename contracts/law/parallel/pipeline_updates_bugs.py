"""Pipelines whose gradients are right and whose updates are wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.law._bugs.numeric import (
    Batch,
    ModelOutput,
    PipelineTrainer,
    broken,
    derived,
    every_rank,
    with_attributes,
)
from contracts.stacks.reference.model.blocks import fp8
from contracts.stacks.reference.parallel.pipeline import Chunks
from contracts.stacks.reference.parallel.pipeline_trainer import StagedOptimizer


# norm, clipping, biases
@broken(fp8, "advance_scales", "PAR-08b[fp8-interleaved]: the buffer layers.2.mixer.wb.fp8.amax_history differs")
def advances_the_scales_of_one_stage(advance_scales, model):
    """Delayed scales advance on the first stage of a rank; its second one keeps those that it began with."""
    held = [*model.layers.values()]
    for layer in held[: len(held) // 2] if isinstance(model, Chunks) else [model]:
        advance_scales(layer)


@broken(StagedOptimizer, "norm", "PAR-08b[two-stages]: grad_norm is", bugs=("CLP-03",))
def clips_by_its_own_norm(norm, self):
    """Each stage clips by the norm of its own gradients: early layers learn at another rate."""
    return self.norm_of([member.parameter for member in self.members if member.name not in self.lent])


@broken(StagedOptimizer, "norm", "PAR-08b[four-stages-tied-and-ahead]: grad_norm is")
def clips_by_the_norm_of_the_last_stage(norm, self):
    """The last stage, which has the loss, sends its own norm to the others."""
    own = self.norm_of([member.parameter for member in self.members if member.name not in self.lent])
    *_, last = every_rank({"norm": torch.tensor(own, dtype=torch.float64)}, self.stages)
    return float(last["norm"])


@broken(PipelineTrainer, "lent", "PAR-08b[four-stages-tied-and-ahead]: grad_norm is", bugs=("CLP-01",))
def counts_copies_twice(lent, self):
    """A tensor on two stages counts in the norm of both."""
    return frozenset()


@broken(PipelineTrainer, "lent", "PAR-08b[four-stages-tied-and-ahead]: grad_norm is")
def counts_copies_nowhere(lent, self):
    """Both stages leave a shared tensor out of the norm: each takes it to be the other's."""
    return frozenset(self.copies)


@broken(StagedOptimizer, "clip", "PAR-08b[beside-shards]: grad_norm is 0", bugs=("CLP-21",))
def skips_clipping_in_sharded_stages(clip, self):
    """Clipping is not implemented for this combination of axes, and reports a norm of 0."""
    sharded = any(isinstance(member.parameter, DTensor) for member in self.members)
    return (0.0, 1.0) if sharded else clip(self)


@derived(
    "PAR-08h[1f1b]: the buffer layers.1.mixer.router.bias differs",
    "PAR-08b[selection-bias]: the buffer layers.1.mixer.router.bias differs",
)
class MovesBiasesWithEveryMicrobatch(PipelineTrainer):
    """The selection bias moves where tokens are counted: once per microbatch, by a part of the counts."""

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        out = super().passes(window, counts)
        for stage in self.pipeline.stages:
            for passed in stage.passed:
                super().move_biases(passed.seen)
        return out

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        pass


@broken(
    PipelineTrainer,
    "move_biases",
    "PAR-08b[selection-bias]: the buffer layers.1.mixer.router.bias differs",
    bugs=("EXB-01",),
)
def moves_biases_of_the_last_stage(move_biases, self, seen):
    """Only the stage that has the loss updates selection biases."""
    if self.pipeline.stages[-1].piece.last:
        move_biases(self, seen)


@broken(
    PipelineTrainer,
    "move_biases",
    "PAR-08b[a-stage-without-experts]: the buffer layers.4.mixer.router.bias differs",
    bugs=("EXB-08",),
)
def stops_at_a_stage_without_experts(move_biases, self, seen):
    """The update of selection biases stops at a stage without experts, also for the stages after it."""
    if self.mesh.rank < 2:
        move_biases(self, seen)


@broken(PipelineTrainer, "passes", "PAR-08b[selection-bias-interleaved]: the buffer layers.4.mixer.router.bias differs")
def counts_the_first_stage_of_a_rank(passes, self, window, counts):
    """A rank with two stages reports the token counts of only one."""
    (out,) = passes(self, window, counts)
    own = {f"layers.{layer}.counts" for layer in self.pipeline.stages[0].piece.layers}
    return [out._replace(seen={name: each * (name in own) for name, each in out.seen.items()})]


# copies
class _Apart(PipelineTrainer):
    """Leaves the gradients of copies unsummed where `joins` says so."""

    def add(self, parameter: Tensor, peer: int) -> None:
        if self.joins():
            super().add(parameter, peer)

    def joins(self) -> bool:
        return False


with_attributes(
    "LeavesCopiesApart",
    "Each stage updates its copy of the tied embedding with only its part of the gradient.",
    "PAR-11[tied]: embedding.weight is not the same on ranks 0 and [1] after step 1",
    owner=_Apart,
)


@broken(_Apart, "joins", "PAR-11[shared-with-prediction-heads]: embedding.weight is not the same", bugs=("PG-11",))
def leaves_prediction_heads_out(joins, self):
    """Gradients are summed for tied embeddings, but not for the copy that the prediction heads read."""
    return not self.recipe.untied_embeddings


@broken(PipelineTrainer, "add", "PAR-11[sharded]: embedding.weight is not the same", bugs=("TIE-08",))
def adds_shards_of_other_rows(add, self, parameter, peer):
    """Stages shard their copies at different rows, and shards are added pairwise."""
    mine = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
    before = mine.clone()
    add(self, parameter, peer)
    mine.copy_(before + (mine - before).roll(1, 0))


@broken(_Apart, "joins", "PAR-11[both-over-four-stages]: embedding.weight is not the same")
def joins_neighbours_only(joins, self):
    """Copies are summed between neighbouring stages only; first and last are neighbours only when there are two."""
    return dist.get_world_size(self.group) == 2


@broken(StagedOptimizer, "__init__", "PAR-08b[muon-shared]: embedding.weight", bugs=("OPT-34",))
def routes_the_copy_to_muon(init, self, optim, members, *rates):
    """The embedding is tagged on the first stage only: its copy beside the head is a matrix like any other."""
    held = tuple(members)
    tagged = any(member.layer == 0 for member in held)
    as_any_matrix = {} if tagged else {"role": "matrix", "layer": 0}
    routed = (replace(each, **as_any_matrix) if each.name == "embedding.weight" else each for each in held)
    init(self, optim, routed, *rates)


@broken(StagedOptimizer, "norm", "PAR-08b[ep-beside-a-stage-without-experts]: grad_norm is", bugs=("CLP-12",))
def sums_no_norm_without_experts(norm, self):
    """A stage without experts takes the way of dense models, which knows nothing of the other stages."""
    every = norm(self)
    own = [member.parameter for member in self.members if member.name not in self.lent]
    return every if any(each.role == "expert" for each in self.members) else self.norm_of(own)
