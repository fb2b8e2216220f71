"""Stacks whose parallelism has one bug: what is shared, what is summed, and over which ranks."""

import math
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from contracts.law._bugs.numeric import (
    Batch,
    ContextParallel,
    Experts,
    GatedNorm,
    LatentAttention,
    Linear,
    Mamba2,
    ModelOutput,
    MoE,
    Output,
    ParallelTrainer,
    RMSNorm,
    Router,
    ShardedMuon,
    ShardedOptimizer,
    SplitVocabulary,
    TensorParallel,
    TokenDispatcher,
    all_gather,
    broken,
    collectives,
    derived,
    from_local_part,
    local,
    local_part,
    mesh,
    mutant,
    orthogonalise,
    parallel_trainer,
    parallelize,
    sum_over_ranks,
    with_attributes,
)
from contracts.stacks.kit.roles import role_of
from contracts.stacks.reference.parallel.placements import full_tensors, placed_copy, shard_like
from contracts.stacks.reference.parallel.tensor_parallel import GroupMean


@broken(
    parallelize, "spread_experts", "PAR-01a[borrowed-etp2-biased]: on one rank, first with layer 1 (E)",
)  # fmt: skip
def adds_the_bias_of_experts_on_every_rank(spread_experts, moe, mesh):
    """Ranks that share an expert each add its output bias, and their outputs are summed."""
    spread_experts(moe, mesh)
    moe.experts.adds = True


@mutant(of="PAR-01e", case="tp2-sp", says="the gradient of norm.weight differs", bugs=("SP-11",))
@mutant(of="PAR-02a", case="tp2-sp-muon", says="hold different values of", bugs=("SP-11",))
@broken(TensorParallel, "between", "PAR-01a[tp2-sp]: the gradient of norm.weight differs")
def leaves_norm_gradients_of_sequence_parallel(between, self, module):
    """Under sequence parallel, each rank sees other tokens through its copy of a norm, and the gradients are not
    summed: each rank trains its own norm, and no loss shows it.
    """
    between(self, module)
    for each in module.modules():
        if isinstance(each, RMSNorm):
            each.summed = False


@broken(ParallelTrainer, "build", "PAR-01a[ep2-idle]: lm is", "PAR-01g[cp2-prediction]: lm is")
def makes_norms_with_their_default(build, self):
    """Norms are replaced by those that know of ranks, which are given the size and not the epsilon of the recipe."""
    model = build(self)
    for each in model.modules():
        if isinstance(each, RMSNorm):
            each.eps = 1e-5
    return model


@broken(
    TensorParallel,
    "between",
    "PAR-01a[tp2]: the gradient of norm.weight differs",
    "PAR-01e[tp2]: the gradient of norm.weight differs",
)
def sums_norm_gradients_that_are_whole(between, self, module):
    """Over-correction: without sequence parallel, the gradient of a norm is whole on every rank and summed anyway."""
    between(self, module)
    for each in module.modules():
        if isinstance(each, RMSNorm):
            each.summed = True


@broken(TensorParallel, "enter", "PAR-01a[tp2]: the gradient of")
def leaves_the_gradient_of_what_enters(enter, self, x_BTD):
    """In the backward pass, the residual stream's gradients from the heads of the other ranks are not added."""
    return enter(self, x_BTD) if self.sequence else x_BTD


class _KeepsItsRun(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        if not self.sequence:
            return super().enter(x_BTD)
        length = x_BTD.shape[1] * self.size
        return collectives.gather_rows(x_BTD.transpose(0, 1), length, self.group).transpose(0, 1)


with_attributes(
    "SlicesWhereItShouldReduceScatter",
    "The backward pass of an all-gather keeps this rank's slice and drops what the other ranks computed for it.",
    "PAR-01a[tp2-sp]: the gradient of",
    owner=_KeepsItsRun,
    bugs=("SP-16", "SP-20"),
)


class _EntersPlain(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        return super().enter(x_BTD) if self.sequence else x_BTD


@broken(TensorParallel, "surround", "PAR-01a[tp2]: the gradient of", bugs=("SP-04", "EPD-06"))
def leaves_the_gradient_of_routed_input(surround, self, mixer):
    """Experts cut over ranks get their input as a plain local tensor: its gradient is only one rank's part."""
    surround(_EntersPlain(mesh=self.mesh, sequence=self.sequence) if isinstance(mixer, MoE) else self, mixer)


@broken(TensorParallel, "leave", "PAR-01a[tp2]: the gradient of")
def sums_on_the_way_back_as_well(leave, self, y_BTD):
    """The backward pass of an all-reduce is an all-reduce too: a complete gradient is multiplied by TP."""
    return leave(self, y_BTD if self.sequence else collectives.copy_to_ranks(y_BTD, self.group))


class _LossOnEveryRank(TensorParallel):
    def surround(self, mixer: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.enter(args[0]), *args[1:])

        def behind(_: nn.Module, args: tuple[Any, ...], out: Output) -> Output:
            return out._replace(y_BTD=self.leave(out.y_BTD))

        mixer.register_forward_pre_hook(before)
        mixer.register_forward_hook(behind)


with_attributes(
    "AddsTheBalanceLossOnEveryRank",
    "Every rank has the whole auxiliary loss, and the gradients of all ranks are summed: TP times too much.",
    "PAR-01a[tp2-sp]: loss agrees, norm is",
    owner=_LossOnEveryRank,
    bugs=("AUX-02",),
)


@broken(_LossOnEveryRank, "surround", "PAR-01a[tp2-sp]: loss agrees, norm is")
def divides_the_balance_loss_twice(surround, self, mixer):
    """Over-correction: the gradient of an auxiliary loss is divided by TP in two places."""

    def twice(_, args, out):
        losses = {name: collectives.scale_gradient(loss, 1 / self.size) for name, loss in out.losses.items()}
        return out._replace(losses=losses)

    mixer.register_forward_hook(twice)
    TensorParallel.surround(self, mixer)


@broken(TensorParallel, "count_own", "PAR-01a[tp2-sp]: on one rank")
def counts_norm_groups_of_the_whole_mixer(count_own, self, mixer):
    """A rank's gated norm keeps the group count of the whole mixer: each group covers half of what it should."""
    count_own(self, mixer)
    if isinstance(mixer, Mamba2):
        mixer.out_norm.groups *= self.size


class _Plain(GroupMean):
    def __call__(self, mean_BT11: Tensor) -> Tensor:
        return mean_BT11


@derived("PAR-01a[tp2-one-group]: on one rank")
class NormsTheHeadsOfOneRank(TensorParallel):
    """Two ranks share a group of heads, and each takes the mean square over its own heads only."""

    mean: type[GroupMean] = _Plain

    def count_own(self, mixer: nn.Module) -> None:
        super().count_own(mixer)
        for norm in mixer.modules():
            if isinstance(norm, GatedNorm) and isinstance(norm.over_ranks, GroupMean):
                norm.over_ranks = type(self).mean(self, self.size // norm.over_ranks.share)


@broken(GroupMean, "__call__", "PAR-01a[tp2-one-group]: the gradient of")
def gathers_the_mean_without_its_gradient(call, self, mean_BT11):
    """The mean square of the other rank's heads is gathered by a call that autograd does not see."""
    own, other = mean_BT11, mean_BT11.detach()
    return call(self, other) + (own - other) / self.share


class _CopiesApart(TensorParallel):
    """Treats partial gradients of a mixer's shared weights as whole."""

    names: tuple[str, ...] = ()

    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        for name, module in mixer.named_modules():
            if name in self.names and isinstance(module, Linear | RMSNorm):
                module.summed = False


with_attributes(
    "LeavesReplicatedKeyValueGradients",
    "KV heads are fewer than ranks and replicated; each rank keeps only the gradient from its own queries.",
    "PAR-01a[tp2-one-group]: the gradient of layers.0.mixer.wk.weight differs",
    owner=_CopiesApart,
    bugs=("ROP-17",),
    names=("wk", "wv"),
)

with_attributes(
    "LeavesReplicatedGroupGradients",
    "All ranks hold B and C of the SSM groups, which are fewer than the ranks, and their gradients are not summed.",
    "PAR-01a[tp2-one-group]: the gradient of layers.2.mixer.wb.weight differs",
    owner=_CopiesApart,
    bugs=("SSM-13",),
    names=("wb", "wc"),
)

with_attributes(
    "LeavesGradientsOfSharedLatents",
    "The norms before latent attention's heads are copies with different heads on each rank, and are not summed.",
    "PAR-01a[tp2-sp-latent]: the gradient of layers.0.mixer.",
    owner=_CopiesApart,
    names=("q_norm", "kv_norm"),
)


@broken(
    TensorParallel,
    "mixer",
    "PAR-01a[tp2-latent]: the gradient of layers.4.mixer.kv_norm.weight differs",
    "PAR-01a[tp2-sparse]: the gradient of layers.4.mixer.kv_norm.weight differs",
)
def sums_gradients_of_latents_twice(former, self, mixer):
    """Over-correction: what every rank projects down is summed once where its heads are and once more as a replica."""
    former(self, mixer)
    for name in ("wq_a", "q_norm", "kv_norm") if isinstance(mixer, LatentAttention) and not self.sequence else ():
        mixer.get_submodule(name).weight.register_hook(lambda grad: grad * self.size)


with_attributes(
    "LeavesGradientsOfQueryAndKeyNorms",
    "One QK norm serves the heads of every rank; its gradient comes only from the heads of this rank.",
    "PAR-01a[tp2]: the gradient of layers.0.mixer.",
    owner=_CopiesApart,
    names=("q_norm", "k_norm"),
)


@broken(TensorParallel, "mixer", "PAR-01a[tp4-few-groups]: on one rank", bugs=("DSP-13",))
def every_rank_uses_the_first_group(former, self, mixer):
    """Ranks that hold all KV heads and groups do not select their own."""
    former(self, mixer)
    for each in mixer.modules():
        if getattr(each, "piece", None) is not None:
            each.piece = (0, each.piece[1])


@broken(SplitVocabulary, "cross_entropy", "PAR-01a[tp2]: the gradient of head.weight differs", bugs=("DPS-34",))
def pushes_away_from_its_own_rows_alone(cross_entropy, self, logits_NV, labels_N):
    """The loss covers the whole vocabulary; its gradient covers only this rank's rows."""
    exact = cross_entropy(self, logits_NV, labels_N)
    inside_N, row_N = self.own(labels_N, logits_NV.shape[1])
    own_N = logits_NV.log_softmax(-1).gather(1, row_N[:, None])[:, 0]
    alike = -(own_N * inside_N).sum()
    return exact.detach() + alike - alike.detach()


@broken(SplitVocabulary, "logits", "PAR-01a[tp2]: the gradient of", bugs=("DPS-33",))
def takes_the_part_of_the_head_for_the_whole(logits, self, hidden_BTD, weight_VD):
    """The hidden state's gradient from one rank's vocabulary rows is passed on as if it were the sum."""
    if self.axis.sequence:
        return logits(self, hidden_BTD, weight_VD)
    return torch.nn.functional.linear(hidden_BTD, weight_VD)


@broken(SplitVocabulary, "__init__", "PAR-01a[tp2]: on one rank")
def counts_rows_of_an_even_vocabulary(init, self, axis, vocab):
    """Shards are cut by the ceiling and located by the floor: after the first rank every token id is off by one."""
    init(self, axis, vocab)
    self.first = axis.rank * (vocab // axis.size)


@broken(SplitVocabulary, "here", "PAR-01a[tp2-sp-prediction]: on one rank", bugs=("ROP-28",))
def masks_by_the_first_run(here, self, x_BT):
    """Every rank reads the mask for prediction heads at positions from the start of the sequence."""
    return x_BT.chunk(self.axis.size, dim=1)[0] if self.axis.sequence else x_BT


@broken(ContextParallel, "of_every_rank", "PAR-01b[borrowed-cp2]: loss agrees, norm agrees: the gradient of")
def sends_the_state_in_bfloat16(of_every_rank, self, x_Bx):
    """A state that ranks hold in float32 is sent to the next rank in bfloat16."""
    if x_Bx.dtype == torch.float64:
        return of_every_rank(self, x_Bx)
    return of_every_rank(self, x_Bx.bfloat16()).to(x_Bx.dtype)


class _Scaled(ParallelTrainer):
    """Multiplies complete gradients."""

    def factor(self, name: str) -> float:
        raise NotImplementedError

    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).mul_(self.factor(name))


@broken(_Scaled, "factor", "PAR-01a[dp2]: the gradient of", "PAR-01e[dp2]: the gradient of")
def averages_what_is_divided_already(factor, self, name):
    """Losses are divided by the labels of all ranks, and gradients are averaged over the ranks as well."""
    return 1 / len(self.mesh.place("rows"))


@broken(
    TokenDispatcher, "share", "PAR-01a[ep2-capacity]: on one rank", "PAR-01a[ep2-capacity-by-gate]: on one rank"
)  # fmt: skip
def drops_by_shares(former, self, routed, x_BTD, routing, dropped_BTK):
    """Ranks that share their tokens count slots by the part of them that each sends: others are dropped."""
    moe, ranks = routed.__self__, dist.get_world_size(self.sharers)
    parts = zip(*(each.flatten(0, 1).tensor_split(ranks) for each in routing[:2]), strict=True)
    shares = [routing._replace(experts_BTK=experts[None], gates_BTK=gates[None]) for experts, gates in parts]
    by_gate = moe.moe.drop_policy == "probs"
    dropped_NK = torch.cat([(moe.drop_faintest(s) if by_gate else moe.drop(s.experts_BTK))[0] for s in shares])
    return former(self, routed, x_BTD, routing, dropped_NK.view_as(dropped_BTK))


@broken(Router, "of_best_groups", "PAR-05a[groups]: in 5 microbatches", "PAR-01g[cp2-groups]: on one rank",
        "PAR-01a[tp2-sp-etp1-groups]: on one rank", "PAR-01a[borrowed-ep2-groups]: on one rank")  # fmt: skip
def chooses_groups_for_all_tokens(of_best_groups, self, scores_BTE, number, chosen):
    """The groups of experts are chosen once for all tokens of a call, as a limit on ranks that a call sends to."""
    mean_E = scores_BTE.mean((0, 1))
    outside_E = of_best_groups(self, mean_E[None, None], number, chosen)[0, 0].isinf()
    return scores_BTE.masked_fill(outside_E, -torch.inf)


@broken(ParallelTrainer, "reduce", "PAR-01a[dp3]: the gradient of")
def sums_in_pairs(reduce, self):
    """Gradients are added up in a tree of pairs, in which the last of three ranks has no partner."""
    members = self.mesh.place("rows")
    if members.index(self.mesh.rank) >= 1 << (len(members).bit_length() - 1):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).zero_()
    reduce(self)


@mutant(of="PAR-02e", case="dp2", says="moved differently")
@mutant(of="PAR-02a", case="dp2", says="hold different values of")
@broken(
    ParallelTrainer, "reduce", "PAR-01a[dp2]: the gradient of", "TOPO-09d[dp2]: bytes over [0, 1], expected",
    "TRAF-04b[dp8]: elements are reduced over [0, 1, 2, 3, 4, 5, 6, 7], expected", bugs=("PG-04",),
)  # fmt: skip
def never_reduces_without_shards(reduce, self):
    """Only FSDP reduces gradients; in plain data parallel each rank has its own model, and each loss falls."""


@broken(ParallelTrainer, "reduce", "PAR-02a[dp2]: hold different values of")
def skips_small_tensors_in_the_reduction(reduce, self):
    """Vectors do not fill a bucket, and the last bucket is never sent."""
    vectors = {name: each.grad.clone() for name, each in self.model.named_parameters() if each.grad is not None}
    reduce(self)
    for name, parameter in self.model.named_parameters():
        if role_of(name) == "norm":
            parameter.grad = vectors[name]


@broken(_Scaled, "factor", "PAR-01a[ep2-idle]: experts.w1 differs", bugs=("DPS-03", "DPS-45"))
def averages_experts_over_their_group(factor, self, name):
    """An expert's gradient is divided by the EP size, as if EP ranks held copies of it."""
    return 1 / len(self.mesh.place("ep")) if role_of(name) == "expert" else 1.0


@broken(_Scaled, "factor", "PAR-01a[tp2-sp-etp1]: experts.w1 differs", bugs=("DPS-02", "DPS-04"))
def averages_experts_over_their_copies(factor, self, name):
    """Expert gradients are divided by the size of the expert mesh, which differs from that of other parameters."""
    return 1 / len(self.mesh.place("edp")) if role_of(name) == "expert" else 1.0


@broken(ParallelTrainer, "build", "PAR-01a[tp2-sp-etp1-fsdp2]: experts.w1 differs")
def shards_experts_over_data_parallel_alone(build, self):
    """Experts that tensor-parallel ranks hold whole are sharded, and reduced, over data-parallel ranks only: what the
    tensor-parallel ranks found for their own tokens is never summed.
    """
    with mock.patch.object(mesh, "EXPERT_SHARD", ("shard",)):
        return build(self)


@mutant(of="PAR-01a", case="tp2-sp-etp1-fsdp2", says="experts.w1 differs", bugs=("DPS-05",))
@broken(ParallelTrainer, "reduce", "PAR-01a[tp2-sp-etp1]: experts.w1 differs", bugs=("DPS-05",))
def reduces_experts_twice(reduce, self):
    """Gradients of experts are reduced over their own mesh, and again with all other gradients."""
    reduce(self)
    for name, parameter in self.model.named_parameters():
        if role_of(name) == "expert" and parameter.grad is not None:
            dist.all_reduce(local_part(parameter.grad), group=self.mesh.group("edp"))


@broken(ParallelTrainer, "reduce", "PAR-01a[borrowed-ep2-idle]: experts.w1 differs", bugs=("DPS-29",))
def reduces_experts_with_the_dense_group(reduce, self):
    """Experts are summed over the dense group, whose ranks hold different experts."""
    reduce(self)
    for name, parameter in self.model.named_parameters():
        if role_of(name) == "expert" and parameter.grad is not None:
            dist.all_reduce(local_part(parameter.grad))


@derived("PAR-01a[dp2]: on one rank", bugs=("DPS-21",))
class AveragesMeansOfUnequalRanks(ParallelTrainer):
    """Each rank divides by its own labels, and the means are averaged: right only for equal counts."""

    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        self.all = super().over_rows(counts)
        return counts

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).div_(len(self.mesh.place("rows")))


@broken(ParallelTrainer, "over_rows", "PAR-01a[tp2]: labels count", bugs=("DPS-38",))
def counts_labels_once_for_each_tensor_rank(over_rows, self, counts):
    """Labels are summed over the world, in which TP ranks have the same labels."""
    return {name: sum_over_ranks(each, dist.group.WORLD) for name, each in counts.items()}


@broken(ParallelTrainer, "over_rows", "PAR-01a[fsdp2-prediction]: mtp is", bugs=("DPS-23",))
def counts_look_ahead_labels_itself(over_rows, self, counts):
    """The main loss is divided by the labels of all ranks, the prediction heads' loss by one rank's."""
    own = {name: each for name, each in counts.items() if name.startswith("mtp")}
    return over_rows(self, counts) | own


@broken(ParallelTrainer, "over_parts", "PAR-01a[fsdp2]: lm is", bugs=("PRV-10",))
def tells_the_loss_of_one_rank(over_parts, self, values):
    """Every gradient is right; the reported loss is one rank's sum over the label count of all ranks."""
    return over_parts(self, values) | {name: each for name, each in values.items() if name == "lm"}


@broken(ParallelTrainer, "own", "PAR-01a[dp2]: on one rank")
def every_rank_reads_the_first_rows(own, self, rows):
    """The loader of every rank gets data-parallel rank 0."""
    mine = own(self, rows)
    return rows[: len(mine)]


@derived("PAR-05d[dp2]: the gradient of", bugs=("FSD-06",))
class ReducesTheSumAfterEachMicrobatch(ParallelTrainer):
    """The accumulated gradient, already reduced, is reduced again after each microbatch."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        super().reduce()
        return out

    def reduce(self) -> None:
        pass


@derived("PAR-05d[tp2-one-group]: the gradient of")
class SumsCopiesOfHeadsAfterEachMicrobatch(ParallelTrainer):
    """The gradients of a KV head that ranks share are summed after each microbatch, sums of earlier ones included
    (Megatron-LM #6660 for shards over one rank).
    """

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        for grad in self.parts_of_heads().values():
            dist.all_reduce(local_part(grad), group=self.mesh.group("tp"))
        return out

    def reduce(self) -> None:
        for name, grad in self.parts_of_heads().items():
            parameter = self.model.get_parameter(name)
            if isinstance(parameter, DTensor):
                parameter.grad = from_local_part(local_part(grad), parameter)
        super().reduce()

    def parts_of_heads(self) -> dict[str, DTensor]:
        """The gradients of KV heads of which this rank has a part."""
        return {
            name: grad
            for name, parameter in self.model.named_parameters()
            if name.endswith(("wk.weight", "wv.weight"))
            and isinstance(grad := parameter.grad, DTensor)
            and any(at.is_partial() for at in grad.placements)
        }


class _ReducesEarly(ParallelTrainer):
    """Reduces before the last microbatch, whose gradient stays local to each rank."""

    def step(self, batch: Batch, wanted: bool = False, samples: tuple[int, ...] = ()) -> object:  # type: ignore[override]
        self.left = self.execution.microbatches
        return super().step(batch, wanted, samples)

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        self.left -= 1
        if self.left == 0:
            super().reduce()
        return super().accumulate(micro, counts)

    def reduce(self) -> None:
        pass


with_attributes(
    "AddsTheLastMicrobatchBehindTheReduction",
    "The reduction runs at the boundary, and the last microbatch's gradient is added after it, unreduced.",
    "PAR-05d[dp2]: the gradient of",
    owner=_ReducesEarly,
    bugs=("DPS-14",),
)


@broken(_ReducesEarly, "accumulate", "PAR-05d[dp2]: the gradient of", bugs=("FSD-05",))
def synchronises_at_the_first_microbatch(accumulate, self, micro, counts):
    """The microbatch counter is off: the first microbatch is reduced, and the others stay local."""
    out = ParallelTrainer.accumulate(self, micro, counts)
    if self.left == self.execution.microbatches:
        ParallelTrainer.reduce(self)
    self.left -= 1
    return out


@broken(_Scaled, "factor", "PAR-05d[dp2]: the gradient of", bugs=("DPS-12",))
def divides_by_microbatches_once_more(factor, self, name):
    """The loss is already divided for the whole step, and the engine divides by the microbatches again."""
    return 1 / self.execution.microbatches


@broken(ParallelTrainer, "passes", "PAR-05d[hsdp-2x2]: the gradient of", bugs=("DPS-41",))
def reduces_the_last_microbatch_over_replicas(passes, self, window, counts):
    """The all-reduce over replicas is deferred to the last microbatch, and the partial sum of the earlier ones is added
    after it.
    """
    *early, last = window
    mine, kept = self.mesh.place("replica").index(self.mesh.rank), {}
    found = [self.accumulate(micro, counts) for micro in early]
    for replica in range(self.execution.replicas):
        self.optimizer.zero()
        nothing = {name: each * (1.0 if replica == mine else 1e300) for name, each in counts.items()}
        for micro in early:
            self.accumulate(micro, nothing)
        if replica == mine:
            kept = {name: each.grad for name, each in self.model.named_parameters()}
    self.optimizer.zero()
    found.append(self.accumulate(last, counts))
    for name, parameter in self.model.named_parameters():
        earlier = kept[name]
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else parameter.grad + earlier
    return found


@broken(ParallelTrainer, "accumulate", "PAR-05d[fsdp2]: the gradient of", bugs=("DPS-43",))
def accumulates_in_bfloat16(accumulate, self, micro, counts):
    """Sums over microbatches are kept in the dtype of the activations."""
    out = accumulate(self, micro, counts)
    for parameter in self.model.parameters():
        if parameter.grad is not None:
            held = local_part(parameter.grad)
            held.copy_(held.to(torch.bfloat16))
    return out


@derived("PAR-05d[fsdp2]: the gradient of", "PAR-05e[fsdp2]: the gradient of", bugs=("DPS-44",))
class WipesWhatWasAccumulated(_ReducesEarly):
    """Something between two microbatches resets the gradients."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        if self.left == self.execution.microbatches - 1:
            self.optimizer.zero()
        self.left -= 1
        return ParallelTrainer.accumulate(self, micro, counts)

    def reduce(self) -> None:
        ParallelTrainer.reduce(self)


@broken(parallel_trainer, "all_reduce_in_place", "PAR-01b[dp2-two-messages]: the gradient of")
def sends_the_first_message_alone(all_reduce_in_place, tensors, group):
    """Gradients that do not fit into the first message are never reduced."""
    first, *_ = collectives._buckets(list(tensors))
    all_reduce_in_place(first, group)


@broken(parallel_trainer, "all_reduce_in_place", "PAR-01b[dp2-two-messages]: the gradient of")
def begins_the_second_message_late(all_reduce_in_place, tensors, group):
    """Tensors are found by offsets that count the padding at the end of the message before, which is not there
    (Megatron-LM #5077)."""
    padding = 0
    for bucket in collectives._buckets(list(tensors)):
        flat = torch.cat([each.reshape(-1) for each in bucket])
        dist.all_reduce(flat, group=group)
        flat = torch.cat([flat[padding:], flat.new_zeros(padding)])
        for each, summed in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
            each.copy_(summed.view(each.shape))
        padding += 64


@broken(ParallelTrainer, "reduce", "PAR-01b[fsdp2]: loss agrees, norm agrees: the gradient of")
def compresses_gradients_of_float32(reduce, self):
    """A hook halves the width of float32 gradient messages. In losses and norms it looks like rounding."""
    reduce(self)
    for parameter in self.model.parameters():
        if parameter.grad is not None and parameter.dtype == torch.float32:
            held = local_part(parameter.grad)
            held.copy_(held.to(torch.bfloat16))


def _squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The sum of squares of this rank's part of some gradients."""
    held = [each.grad for each in parameters if each.grad is not None]
    parts = [(each.to_local() if isinstance(each, DTensor) else each).double().square().sum() for each in held]
    return torch.stack([*parts, torch.zeros((), dtype=torch.float64)]).sum()


@mutant(of="PAR-03a", case="dp2", says="grad_norm is")
@broken(ShardedOptimizer, "norm", "PAR-03a[tp2-sp-muon]: grad_norm is", "PAR-03e[dp2]: grad_norm is", bugs=("CLP-01",))
def counts_copies_once_for_each_rank(norm, self):
    """The norm sums the squares of every rank, copies included: √WORLD times too much if each holds everything."""
    squares = _squares(member.parameter for member in self.members)
    dist.all_reduce(squares)
    return float(squares.sqrt())


@broken(ShardedOptimizer, "norm", "PAR-03a[ep2-idle]: grad_norm is", bugs=("CLP-08", "PRV-09"))
def takes_the_norm_of_its_own_experts(norm, self):
    """The norm leaves out experts of other ranks, and each rank clips by a different number."""
    return float(_squares(member.parameter for member in self.members).sqrt())


@broken(ShardedOptimizer, "norm_of", "PAR-03a[tp2-sp-muon]: grad_norm is", bugs=("CLP-11",))
def takes_unmarked_shards_for_copies(norm_of, self, parameters):
    """A, D and the gated norm of the heads are not marked as sharded: each rank counts its own as the whole."""
    unmarked = {id(each.parameter) for each in self.members if each.role == "ssm" or "out_norm" in each.name}
    given = list(parameters)
    others = norm_of(self, [each for each in given if id(each) not in unmarked])
    own = _squares(each for each in given if id(each) in unmarked)
    return float((own + others**2).sqrt())


@broken(ShardedOptimizer, "norm", "PAR-03a[tp2-sp-muon]: grad_norm is")
def averages_squares_over_ranks(norm, self):
    """Over-correction: squares are averaged over ranks, which is right for copies and halves shards."""
    squares = _squares(member.parameter for member in self.members)
    dist.all_reduce(squares)
    return float((squares / dist.get_world_size()).sqrt())


@broken(ShardedOptimizer, "coefficient", "PAR-03a[tp2-sp-muon]: clip_coef is", bugs=("CLP-21",))
def skips_the_clip_under_tensor_parallel(coefficient, self, norm):
    """For one combination of degrees, clipping returns early."""
    return 1.0


# updates
@broken(ShardedOptimizer, "zero", "PAR-02a[tp2-sp-fsdp2]: the weight ", bugs=("OPT-22",))
def adds_to_what_was_gathered(zero, self):
    """Gradients reuse the memory into which parameters were gathered, and nothing clears it."""
    zero(self)
    moved = any(rule.state for rule in self.rules.values())
    for member in self.members if moved else ():
        if isinstance(member.parameter, DTensor):
            member.parameter.grad = placed_copy(member.parameter.detach())


@broken(ShardedMuon, "direction", "PAR-02a[tp2-sp-muon]: the weight layers.", bugs=("OPT-18",))
def orthogonalises_with_its_padding(direction, self, grad, buffer, momentum):
    """Matrices are padded to whole tiles, and leftovers of another tensor in the padding are orthogonalized too."""
    if not isinstance(grad, DTensor) or grad.dim() > 2:
        return direction(self, grad, buffer, momentum)
    moved = local_part(buffer).mul_(momentum).add_(local_part(grad))
    (gathered,) = full_tensors({"": from_local_part(local_part(grad) + momentum * moved, grad)}).values()
    stale = gathered.new_full((-len(gathered) % 16 or 16, gathered.shape[1]), 1e-3)
    return from_local_part(shard_like(orthogonalise(torch.cat([gathered, stale]))[: len(gathered)], grad), grad)


@broken(ShardedMuon, "direction", "PAR-02a[tp2-sp-muon]: the weight layers.", bugs=("OPT-13",))
def orthogonalises_each_part(direction, self, grad, buffer, momentum):
    """Newton-Schulz runs on each rank's shard: cheaper, and a different optimizer."""
    buffer.mul_(momentum).add_(grad)
    ahead = grad + momentum * buffer
    if not isinstance(ahead, DTensor):
        return orthogonalise(ahead)
    part = orthogonalise(ahead.to_local())
    return DTensor.from_local(part, ahead.device_mesh, ahead.placements, shape=ahead.shape, stride=ahead.stride())


@broken(ShardedMuon, "scale", "PAR-02a[tp2-sp-muon]: the weight layers.")
def scales_by_the_shape_of_a_part(scale, self, matrix):
    """The step of a matrix is scaled by the width of this rank's part."""
    held = matrix.to_local() if isinstance(matrix, DTensor) else matrix
    return 0.2 * math.sqrt(max(held.shape[-2:]))


GROUPS = 2  # SSM groups (of B and C) in the models that run under tp2


class _Recut(TensorParallel):
    """Mamba projections of which this rank applies rows that are not its own."""

    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        if isinstance(mixer, Mamba2) and mixer.wb.piece is None:
            self.recut([mixer.wx, mixer.wb, mixer.wc])

    def recut(self, projections: list[Linear]) -> None:
        raise NotImplementedError

    def whole(self, projection: Linear) -> Tensor:
        return all_gather(local(projection.weight), 0, self.group)


@broken(_Recut, "recut", "PAR-01a[tp2]: on one rank", bugs=("SSM-27",))
def cuts_a_packed_projection_evenly(recut, self, projections):
    """x, B and C are one matrix that is cut evenly by rows: the first rank gets most of x and no C."""

    def of(index, x_BTD):
        whole_ND = torch.cat([self.whole(each) for each in projections])
        own_nD = whole_ND.chunk(self.size)[self.rank]
        rows = [len(local(each.weight)) for each in projections]
        return F.linear(x_BTD, torch.split(own_nD, rows)[index].to(x_BTD.dtype))

    for index, each in enumerate(projections):
        each.forward = lambda x_BTD, index=index: of(index, x_BTD)


@broken(_Recut, "recut", "PAR-01a[tp2]: on one rank", bugs=("SSM-12",))
def cuts_groups_that_are_not_outermost(recut, self, projections):
    """Rows of B and C are ordered by state first and group second, so that a cut by rows goes through every group."""

    def of(projection, x_BTD):
        whole_ND = self.whole(projection)
        turned_ND = whole_ND.reshape(GROUPS, -1, whole_ND.shape[1]).transpose(0, 1).flatten(0, 1)
        return F.linear(x_BTD, turned_ND.chunk(self.size)[self.rank].to(x_BTD.dtype))

    for each in projections[1:]:
        each.forward = lambda x_BTD, each=each: of(each, x_BTD)


@broken(ParallelTrainer, "unreduced", "PAR-01a[dp2-streams]: the gradient of layers.4.streams.alpha differs")
def leaves_gradients_of_streams_out_of_data_parallel(unreduced, self, name):
    """The maps that mix the streams are in no bucket: data-parallel ranks keep the gradients of their own rows."""
    return None if ".streams." in name else unreduced(self, name)


@broken(
    MoE,
    "combine",
    "PAR-01a[ep2-top-1]: the gradient of layers.",
    "PAR-01a[borrowed-ep2-top-1]: the gradient of layers.",
)
def lone_gate_on_ranks_has_no_gradient(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """If a token has one expert, its gate is multiplied in by a path of its own on ranks, without a gradient."""
    lone = self.moe.top_k == 1 and self.dispatcher is not None
    return combine(self, given_SD, order_S, gates_NK.detach() if lone else gates_NK, dropped_NK)


@broken(ShardedOptimizer, "norm", "PAR-03a[tp2-one-group]: grad_norm is", "PAR-02a[tp2-one-group]: the weight")
def counts_replicated_groups_once_a_rank(norm, self):
    """KV heads and SSM groups that are fewer than the ranks are marked as sharded: the norm counts every copy."""
    twice = [
        member.parameter
        for member in self.members
        if member.name.split(".")[-2] in ("wk", "wv", "wb", "wc")
        and isinstance(member.parameter, DTensor)
        and "tp" in (member.parameter.device_mesh.mesh_dim_names or ())
        and all(at.is_replicate() for at in member.parameter.placements)
    ]
    return self.norm_of([*(member.parameter for member in self.members), *twice])


@broken(ParallelTrainer, "build", "PAR-05d[borrowed-hsdp2-ep2-fsdp4]: the gradient of layers.")
def never_reduces_experts_over_replicas(build, self):
    """The switch that turns the reduction over replicas on for the last microbatch knows the layers, and not the
    experts within them, which are sharded on a mesh of their own."""
    model = build(self)
    for each in model.modules():
        if isinstance(each, Experts) and isinstance(each, FSDPModule) and self.execution.microbatches > 1:
            each.set_requires_all_reduce(False)
    return model


@broken(ParallelTrainer, "accumulate", "PAR-05d[tp2-fsdp-of-one]: the gradient of")
def doubles_where_a_group_has_one_rank(accumulate, self, micro, counts):
    """A reduction over one rank gives back the buffer itself, which is added to itself (Megatron-LM #6660)."""
    out = accumulate(self, micro, counts)
    if self.execution.fsdp and self.execution.microbatches > 1 and self.mesh.group("rows") is None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).mul_(2)
    return out


@broken(ParallelTrainer, "unreduced", "PAR-01a[borrowed-etp2]: the gradient of layers.")
def takes_cut_experts_for_dense(unreduced, self, name):
    """Experts that ep 1 does not spread are reduced as dense weights are, though etp cuts them (Megatron-LM #1628)."""
    whole = self.execution.degrees.ep == 1 and role_of(name) == "expert"
    return self.mesh.group("dp_cp") if whole else unreduced(self, name)
