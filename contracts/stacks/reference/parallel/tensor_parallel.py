"""Tensor and sequence parallel: the residual stream between the layers, a share of the heads within them.

A mixer computes with some of the heads, groups or inner channels of the whole. Before it the ranks of the axis hold
the residual stream alike (or, with sequence parallel, each its run of tokens, which are gathered); after it the parts
that they computed are summed (or summed and scattered). Within a mixer every gradient is therefore a part, that of a
copied weight too, and parts are summed. Outside, without sequence parallel, all ranks compute the same.

Parameters are DTensors on the axis and keep their names; blocks compute with `local` ones. Colwise- and
RowwiseParallel are not used: they make DTensors of the activations, which a convolution, a scan or a recurrence over
local heads cannot take, and a block would have one form on one rank and another on two.

B sequences · T tokens · D hidden · V vocabulary, v of it on this rank · N tokens of the batch
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from contracts.spec import refuse
from contracts.stacks.reference.model.blocks import (
    M2RNN,
    Attention,
    HyperConnections,
    LatentAttention,
    Linear,
    Mamba2,
    Mamba3,
    Mlp,
    MoE,
    Output,
    ParallelMixers,
    RMSNorm,
    Router,
)
from contracts.stacks.reference.model.hybrid_model import Model, Vocabulary
from contracts.stacks.reference.model.mtp import IGNORED
from contracts.stacks.reference.parallel.collectives import (
    Group,
    all_gather,
    all_reduce,
    copy_to_ranks,
    reduce_scatter,
    scale_gradient,
    sum_over_ranks,
)

_MLP = {"w1.weight": 0, "w3.weight": 0, "w2.weight": 1} | dict.fromkeys(("w1.bias", "w3.bias"), 0)
_PER_HEAD = dict.fromkeys(("A_log", "D", "dt_bias", "out_norm.weight"), 0) | {"wo.weight": 1}
SPLIT: Mapping[type[nn.Module], Mapping[str, int]] = {
    Attention: {f"{name}.{part}": 0 for name in ("wq", "wk", "wv") for part in ("weight", "bias")} | {"wo.weight": 1},
    LatentAttention: {"wq_b.weight": 0, "wkv_b.weight": 0, "wo.weight": 1},
    Mlp: _MLP,
    MoE: {"experts.w2": 2}
    | {f"experts.{name}": 1 for name in ("w1", "w3", "b1", "b3")}
    | {f"shared.{name}": dim for name, dim in _MLP.items()},
    Mamba2: dict.fromkeys(("wz.weight", "wx.weight", "wb.weight", "wc.weight", "wdt.weight"), 0)
    | {f"conv_{each}.{name}": 0 for each in "xbc" for name in ("weight", "bias")}
    | _PER_HEAD,
    Mamba3: dict.fromkeys([f"w{each}.weight" for each in ("z", "x", "b", "c", "dt", "a", "trap")], 0)
    | dict.fromkeys(("b_bias", "c_bias", "D", "dt_bias"), 0)
    | {"wo.weight": 1},
    M2RNN: dict.fromkeys([f"w{each}.weight" for each in "gvqkf"], 0) | {"W": 0} | _PER_HEAD,
}
"""The dim over which the ranks of the axis share a parameter; those that are not named they hold alike."""
GROUPED: Mapping[type[nn.Module], tuple[str, ...]] = {
    Attention: ("wk", "wv"),
    Mamba2: ("wb", "wc", "conv_b", "conv_c"),
    Mamba3: ("wb", "wc"),
}
"""Modules with a piece for each KV head or SSM group. If ranks are more, every one holds all and uses one."""


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """One axis of ranks that share heads. `sequence` says that they share the tokens between mixers too."""

    mesh: DeviceMesh
    sequence: bool

    @property
    def group(self) -> Group:
        return self.mesh.get_group()

    @property
    def size(self) -> int:
        return self.mesh.size()

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank()

    def enter(self, x_BTD: Tensor) -> Tensor:
        """All tokens, on every rank."""
        return all_gather(x_BTD, 1, self.group) if self.sequence else copy_to_ranks(x_BTD, self.group)

    def leave(self, y_BTD: Tensor) -> Tensor:
        """The sum of what the ranks computed, for the tokens of this one."""
        return reduce_scatter(y_BTD, 1, self.group) if self.sequence else all_reduce(y_BTD, self.group)

    def distribute(self, module: nn.Module, split: Mapping[str, int]) -> None:
        """Make every parameter below a module a DTensor on the axis: sharded as `split` says, or held alike."""
        for name, parameter in list(module.named_parameters()):
            owner, _, last = name.rpartition(".")
            at = Shard(split[name]) if name in split else Replicate()
            setattr(module.get_submodule(owner), last, on_mesh(parameter, self.mesh, [at]))

    # layers
    def mixer(self, mixer: nn.Module) -> None:
        """Give this rank its share of a mixer, and put one exchange of tokens around all of it."""
        for each in (mixer.attention, mixer.ssm) if isinstance(mixer, ParallelMixers) else (mixer,):
            self.share(each)
        self.surround(mixer)

    def share(self, mixer: nn.Module) -> None:
        """Give this rank its heads, groups or inner channels of a mixer."""
        kind = next(each for each in SPLIT if isinstance(mixer, each))
        pieces = self.pieces(mixer)
        names = GROUPED.get(kind, ()) if pieces < self.size else ()
        own = {name: dim for name, dim in SPLIT[kind].items() if name.split(".")[0] not in names}
        self.distribute(mixer, own)
        for name in names:
            mixer.get_submodule(name).piece = (self.rank * pieces // self.size, pieces)  # type: ignore[assignment]
        for name, module in mixer.named_modules():
            if name.split(".")[-1] in ("wo", "w2", "experts"):  # what they give is summed over the ranks
                module.adds = self.rank == 0
        self.count_own(mixer)

    def pieces(self, mixer: nn.Module) -> int:
        """KV heads or SSM groups of a mixer."""
        if isinstance(mixer, Attention):
            return mixer.wk.out_features // mixer.head_dim
        return mixer.groups if isinstance(mixer, Mamba2 | Mamba3) else self.size

    def count_own(self, mixer: nn.Module) -> None:
        """Mixers with a scan keep the numbers of their heads and groups: those of this rank."""
        if isinstance(mixer, Mamba2 | Mamba3 | M2RNN):
            mixer.heads //= self.size
        if isinstance(mixer, Mamba2 | Mamba3):
            mixer.groups = max(1, mixer.groups // self.size)
        if isinstance(mixer, Mamba2 | M2RNN):
            norm = mixer.out_norm
            if norm.groups < self.size:
                norm.over_ranks = GroupMean(self, norm.groups)
            norm.groups = max(1, norm.groups // self.size)

    def surround(self, mixer: nn.Module) -> None:
        """Tokens together before a mixer, its parts together after it.

        Every rank has the whole of an auxiliary loss that was computed within; a part of its gradient is enough.
        """

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.enter(args[0]), *args[1:])

        def behind(_: nn.Module, args: tuple[Any, ...], out: Output) -> Output:
            losses = {name: scale_gradient(loss, 1 / self.size) for name, loss in out.losses.items()}
            return Output(self.leave(out.y_BTD), losses, out.state, out.seen)

        mixer.register_forward_pre_hook(before)
        mixer.register_forward_hook(behind)

    def between(self, module: nn.Module) -> None:
        """The modules between the mixers are replicated; if tokens are sharded, their gradients are partial sums."""
        self.distribute(module, {})
        for each in module.modules():
            if isinstance(each, Linear | RMSNorm | HyperConnections | Router):
                each.summed = self.sequence

    # ends
    def ends(self, model: Model) -> None:
        """Embedding and output projection: rows of the vocabulary."""
        self.distribute(model.embedding, {"weight": 0})
        if model.head is not None:
            self.distribute(model.head, {"weight": 0})
        model.vocabulary = SplitVocabulary(self, model.recipe.vocab)


def on_mesh(parameter: nn.Parameter, mesh: DeviceMesh, placements: list[Placement]) -> nn.Parameter:
    """A parameter of which this rank keeps its part; every rank holds the whole of it, and nothing is sent.

    It is marked as `nn.Parameter` marks a tensor of another class (private; seen in 2.0 to 2.13), which detaches it
    first: for each shape DTensor would work out where the result of that lies, a quarter of what a small step takes.
    """
    part = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None)
    part.requires_grad_(parameter.requires_grad)._is_param = True
    assert isinstance(part, nn.Parameter)
    return part


class GroupMean:
    """The mean of squares over a group of heads that neighbouring ranks share."""

    def __init__(self, axis: TensorParallel, groups: int) -> None:
        share = axis.size // groups
        self.axis, self.first, self.share = axis, axis.rank // share * share, share

    def __call__(self, mean_BT11: Tensor) -> Tensor:
        every = all_gather(mean_BT11, mean_BT11.dim() - 1, self.axis.group)
        own: Tensor = every[..., self.first : self.first + self.share]
        return own.mean(-1, keepdim=True)


class SplitVocabulary(Vocabulary):
    """Each rank of the axis has some rows of the vocabulary: the first ranks ceil(V / ranks), the last what is left."""

    def __init__(self, axis: TensorParallel, vocab: int) -> None:
        self.axis = axis
        self.first = min(vocab, axis.rank * -(-vocab // axis.size))

    def own(self, tokens: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Whether tokens are of this rank's rows, and which row; 0 for others."""
        inside = (tokens >= self.first) & (tokens < self.first + rows)
        return inside, torch.where(inside, tokens - self.first, 0)

    def lookup(self, tokens_BT: Tensor, weight_VD: Tensor) -> Tensor:
        if self.axis.sequence and tokens_BT.shape[1] % self.axis.size:
            problem = f"must be a multiple of tp ({self.axis.size}) under sp"
            raise refuse("sequence length", tokens_BT.shape[1], problem, "pad it, or drop sp")
        inside_BT, row_BT = self.own(tokens_BT, len(weight_VD))
        padded_VD = torch.cat([weight_VD, weight_VD.new_zeros(1, weight_VD.shape[1])])  # a rank may have no row
        return self.axis.leave(F.embedding(row_BT.masked_fill(~inside_BT, len(weight_VD)), padded_VD))

    def here(self, x_BT: Tensor) -> Tensor:
        return x_BT.chunk(self.axis.size, dim=1)[self.axis.rank] if self.axis.sequence else x_BT

    def logits(self, hidden_BTD: Tensor, weight_VD: Tensor) -> Tensor:
        """(B, T, v): every token, and this rank's rows."""
        return super().logits(self.axis.enter(hidden_BTD), weight_VD)

    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        inside_N, row_N = self.own(labels_N, logits_NV.shape[1])
        loss: Tensor = _CrossEntropy.apply(logits_NV, labels_N != IGNORED, inside_N, row_N, self.axis.group)  # type: ignore[no-untyped-call]
        return loss


class _CrossEntropy(torch.autograd.Function):
    """The sum over valid labels of log sum exp - logit, where each rank has some of the logits."""

    @staticmethod
    def forward(ctx: Any, logits_Nv: Tensor, valid_N: Tensor, inside_N: Tensor, row_N: Tensor, group: Group) -> Tensor:
        lowest = torch.finfo(logits_Nv.dtype).min
        padded = F.pad(logits_Nv, (0, 1), value=lowest)  # a rank may have no row
        largest_N = padded.amax(-1)
        dist.all_reduce(largest_N, op=dist.ReduceOp.MAX, group=group)
        exp_Nv = (logits_Nv - largest_N[:, None]).exp()
        asked_N = padded.gather(1, row_N[:, None])[:, 0].masked_fill(~inside_N, 0)
        sums_N, asked_N = sum_over_ranks(torch.stack([exp_Nv.sum(-1), asked_N]), group)
        ctx.save_for_backward(exp_Nv / sums_N[:, None], valid_N, inside_N, row_N)
        losses_N: Tensor = sums_N.log() + largest_N - asked_N
        return (losses_N * valid_N).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        probability_Nv, valid_N, inside_N, row_N = ctx.saved_tensors
        off_Nv = F.pad(probability_Nv, (0, 1)).scatter_add(
            1, row_N[:, None], -inside_N[:, None].to(probability_Nv.dtype)
        )[:, :-1]
        return off_Nv * valid_N[:, None] * grads[0], None, None, None, None
