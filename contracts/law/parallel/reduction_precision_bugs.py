"""Gradients and weights that ranks reduce, scale or gather in another dtype than float32, or not at all."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.law._bugs.dead import EveryRankDoesAll
from contracts.law._bugs.numeric import (
    Mamba2,
    ParallelTrainer,
    TokenDispatcher,
    broken,
    local,
    parallel_trainer,
    with_attributes,
)


@broken(ParallelTrainer, "reduce", "PAR-10[dp2]: reduces in bfloat16", bugs=("MXP-10",))
def reduces_gradients_in_bfloat16(reduce, self):
    """Gradients are reduced in bfloat16: half the bytes, and small gradients are rounded away beside large ones."""
    for parameter in self.model.parameters():
        if parameter.grad is not None and not isinstance(parameter, DTensor):
            narrow = parameter.grad.to(torch.bfloat16)
            dist.all_reduce(narrow, group=self.mesh.group("rows"))
            parameter.grad = narrow.to(parameter.dtype)


@broken(
    ParallelTrainer, "unscale", "PAR-10b[fp16-cp2]: of that on one rank", "PAR-10b[fp16-tp2-sp]: of that on one rank"
)
def takes_the_scale_out_of_reduced_gradients_alone(unscale, self):
    """The loss scale is taken out by the hook that reduces over data-parallel ranks; on other axes it is left in."""
    if len(self.mesh.place("rows")) > 1:
        unscale(self)


with_attributes(
    "ReducesNothingInHalf",
    "Every rank computes the whole step: no gradient is reduced, in whatever dtype.",
    "PAR-10[dp2]: of 2 reduces nothing",
    owner=EveryRankDoesAll,
)


@broken(ParallelTrainer, "reduce", "PAR-10[fsdp2]: times that in float32", bugs=("DPS-42",))
def leaves_a_scale_in_the_gradient(reduce, self):
    """The loss is multiplied by the world size for an average that the reduction does not take."""
    reduce(self)
    for parameter in self.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(self.execution.world)


@broken(ParallelTrainer, "whole", "PAR-10[dp2]: is held in bfloat16, declared float32")
def holds_weights_in_bfloat16(whole, self, tensors):
    """Weights are reported, and kept, in the dtype of the computation."""
    return {name: each.to(torch.bfloat16) for name, each in whole(self, tensors).items()}


class _RoundedRates(Mamba2):
    def decay_rate(self) -> Tensor:
        return -torch.exp(local(self.A_log).bfloat16().float())


@broken(ParallelTrainer, "build", "PAR-10a[fsdp2-recomputed]: lm is", "PAR-10a[fsdp2]: lm is", bugs=("MXP-02",))
def gathers_rates_in_bfloat16(build, self):
    """One mixed-precision policy for the whole unit: A_log is float32 in storage and in the table, and rounded where
    the scan reads it.
    """
    model = build(self)
    for each in model.modules():
        if type(each) is Mamba2:
            each.__class__ = _RoundedRates
    return model


@broken(TokenDispatcher, "share", "PAR-10a[ep2]: on one rank, first with layer 1 (E)")
def rounds_the_gates_that_it_shares(share, self, routed, x_BTD, routing, dropped_BTK):
    """Ranks that share tokens round their gates to the dtype of the activations; one rank keeps float32."""
    gates_BTK = routing.gates_BTK.to(x_BTD.dtype).to(routing.gates_BTK.dtype)
    return share(self, routed, x_BTD, routing._replace(gates_BTK=gates_BTK), dropped_BTK)


@broken(ParallelTrainer, "reduce", "PAR-10a[dp2]: the gradient of", bugs=("DPS-15",))
def reduces_what_nobody_steps(reduce, self):
    """The all-reduce runs over 16-bit copies of the gradients, and the step reads the float32 ones."""
    for parameter in self.model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad.to(torch.bfloat16).float(), group=self.mesh.group("rows"))


@broken(ParallelTrainer, "reduce", "PAR-10a[dp2]: .A_log differs", bugs=("DPS-15",))
def reduces_one_dtype_alone(reduce, self):
    """Buckets are made by the dtype of the computation: what stays float32 is in none of them."""
    kept = {id(each): each.grad for name, each in self.model.named_parameters() if name.endswith("A_log")}
    for parameter in self.model.parameters():
        parameter.grad = None if id(parameter) in kept else parameter.grad
    reduce(self)
    for parameter in self.model.parameters():
        parameter.grad = kept.get(id(parameter), parameter.grad)


@broken(
    parallel_trainer,
    "all_reduce_in_place",
    "PAR-10b[tp2-sp]: elements of the gradients of norms are numbers of bfloat16",
    "PAR-10b[cp2]: elements of the gradients of norms are numbers of bfloat16",
    "PAR-10b[borrowed-ep2]: elements of the gradients of norms are numbers of bfloat16",
)
def sums_parts_in_the_dtype_of_activations(reduce, grads, group):
    """The policy for reductions covers one axis: what ranks of the others hold alike is summed as it comes."""
    narrow = [grad.to(torch.bfloat16) for grad in grads]
    reduce(narrow, group)
    for grad, each in zip(grads, narrow, strict=True):
        grad.copy_(each.to(grad.dtype))


@broken(parallel_trainer, "all_reduce_in_place", "PAR-10b[tp2]: is off by", "PAR-10b[tp2-sp]: is off by")
def sums_nothing_under_half_precision(reduce, grads, group):
    """The reduction has the buckets of the 16-bit copies, and nobody sums the gradients in float32."""
