"""Stacks that keep more on a rank than planned, and plans that count what no rank keeps."""

from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from contracts.law._bugs.numeric import (
    Experts,
    Model,
    ParallelTrainer,
    PipelineTrainer,
    Reference,
    ShardedOptimizer,
    Stage,
    TensorParallel,
    broken,
    mesh,
    mutant,
    parallelize,
)


def _whole(like: Tensor) -> Tensor:
    """Zeros of the whole shape, on every rank."""
    if not isinstance(like, DTensor):
        return torch.zeros_like(like)
    everywhere = [Replicate()] * like.device_mesh.ndim
    return DTensor.from_local(torch.zeros(like.shape), like.device_mesh, everywhere, run_check=False)


@broken(ShardedOptimizer, "step", "MEM-01b[fsdp8]: bytes of optimizer of experts, predicted")
def keeps_optimizer_state_whole(step, self, lr):
    """Optimizer state is created before the model is sharded: every rank has both moments of everything."""
    step(self, lr)
    for rule in self.rules.values():
        for state in rule.state.values():
            state |= {name: _whole(each) for name, each in state.items() if each.dim()}


@broken(ParallelTrainer, "move_biases", "MEM-01b[tp2-sp-ep2-fsdp2]: bytes of gradients of experts, predicted")
def keeps_gradients_whole(move_biases, self, seen):
    """Gradients are gathered for inspection, and the gathered copies stay."""
    move_biases(self, seen)
    for parameter in self.model.parameters():
        parameter.grad = None if parameter.grad is None else _whole(parameter.grad)


@broken(ShardedOptimizer, "step", "MEM-01b[dp8]: bytes of optimizer of experts, predicted", bugs=("OPT-28",))
def keeps_moments_in_bfloat16(step, self, lr):
    """Moments are kept in 16 bits: half of the planned bytes, and less precise training."""
    step(self, lr)
    for rule in self.rules.values():
        for state in rule.state.values():
            state |= {name: each.bfloat16() for name, each in state.items() if each.dim()}


@broken(parallelize, "spread_experts")
def _nowhere(spread_experts, *args):
    pass


class _OwnOfAll(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        up_SF = self.matmul(x_SD, self.w1[: len(ends_E)], ends_E).relu().square()
        return self.matmul(up_SF, self.w2[: len(ends_E)], ends_E)


@mutant(of="MEM-01b", case="borrowed-tp2-sp-ep4-fsdp4", says="bytes of weights of experts, predicted", bugs=("OPT-30",))
class KeepsEveryExpertOnEveryRank(_nowhere):
    """Rows are sent to their experts, although every rank holds all experts: EP saves no memory."""

    def parts(self):
        return replace(super().parts(), experts=_OwnOfAll)


@broken(TensorParallel, "distribute", "MEM-01b[borrowed-tp2-sp-ep2-etp2-fsdp]: bytes of weights of all else, predicted")
def keeps_the_vocabulary_on_every_tp_rank(distribute, self, module, split):
    """TP does not cut the embedding: 65 536 rows on each rank."""
    distribute(self, module, {} if isinstance(module, torch.nn.Embedding) else split)


@broken(ShardedOptimizer, "rule", "MEM-01b[muon-fsdp8]: bytes of optimizer of experts, predicted", bugs=("OPT-20",))
def moves_matrices_by_adam_w_in_silence(rule, self, member):
    """Muon is asked for; sharded matrices are not recognised, and AdamW updates them with an extra moment."""
    return "adamw"


@broken(Stage, "keep", "MEM-01b[pp2-tp2-sp-last]: bytes of weights of all else, predicted")
def keeps_the_embedding_on_every_stage(keep, self):
    """Stages that neither embed nor predict keep the table of 65 536 rows, its gradient and its moments."""
    embedding = self.embedding
    keep(self)
    self.embedding = embedding


@broken(Reference, "budget", "MEM-01b[muon-borrowed-tp2-sp-ep4]: bytes of optimizer of experts, predicted")
def plans_two_moments_under_muon(budget, self, recipe, spread, card):
    """The budget counts 12 bytes per parameter beside its weight, whatever the update rule."""
    return budget(self, replace(recipe, optim=replace(recipe.optim, rule="adamw")), spread, card)


@broken(Reference, "budget", "MEM-01b[hsdp-2x8]: bytes of weights of experts, predicted")
def plans_one_copy_over_all_ranks(budget, self, recipe, spread, card):
    """The budget of HSDP cuts over all data-parallel ranks, as if there were no second replica."""
    return budget(self, recipe, replace(spread, world=2 * spread.world), card)


@broken(Reference, "budget", "MEM-01b[pp2-unequal]: bytes of weights of experts, predicted")
def plans_equal_stages(budget, self, recipe, spread, card):
    """The budget divides the layers by the number of stages, though the pattern writes out unequal ones (as
    Megatron-Bridge did, #5077)."""
    return budget(self, replace(recipe, pattern=recipe.pattern.replace("|", "")), spread, card)


@broken(Model, "__init__", "MEM-01h[fsdp8]: in bfloat16 a rank holds")
def keeps_a_second_master_in_bfloat16(init, self, *args):
    """In bfloat16 only, a flat buffer of a billion elements is kept beside the master weights."""
    init(self, *args)
    if self.recipe.dtype == "bf16":
        self.norm.kept = torch.nn.Parameter(torch.zeros(1 << 30))


@broken(ParallelTrainer, "build", "MEM-01b[borrowed-cp2-fsdp4]: bytes of weights of", bugs=("PG-23",))
def shards_over_context_alone(build, self):
    """FSDP gets the mesh (dp, cp) unflattened and reads it as (replicas, shards): every number is right, and a rank
    holds four times the state.
    """
    with mock.patch.object(mesh, "REPLICA", ("replica", "shard")), mock.patch.object(mesh, "SHARD", ("cp",)):
        return build(self)


@broken(PipelineTrainer, "reduce", "MEM-01b[pp2-fsdp2]: bytes of weights of", bugs=("FSD-09",))
def never_reshards_its_stage(reduce, self):
    """The stage counts backward passes to the wrong number, so that none is the last: its weights stay gathered."""
    reduce(self)
    for each in self.model.modules():
        if isinstance(each, FSDPModule):
            each.unshard()  # as they are behind a backward pass that is not the last
