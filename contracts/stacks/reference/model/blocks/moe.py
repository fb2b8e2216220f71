"""E: token-choice experts. A router scores tokens, tokens are sorted by expert, and each expert is a small MLP.

    y = sum over a token's k experts of gate · expert(x), plus shared(x) without a gate

Scores, gates and both sums are float32 under bfloat16. A gate multiplies the output of an expert, not its input.
Gates equal Megatron-Core's without `--moe-router-pre-softmax`: softmax over the k chosen logits, or the chosen
sigmoids divided by their sum (arXiv 2412.19437, eq. 12-16), times `route_scale`. For k = 1 either would be 1 and teach
the router nothing. The gate is then the expert's sigmoid, or its share of the softmax over all experts (arXiv
2101.03961, eq. 2), as Megatron-Core demands.

With a capacity factor an expert has ceil(factor · tokens · k / experts) slots in a call. Tokens take them in token
order, so a later token never displaces an earlier one, or by gate, the greatest first. An assignment without a slot is
dropped: it adds nothing, and the token's other gates do not change. Without a capacity factor nothing is dropped.

B sequences · T tokens · N = B·T · K experts a token · S = N·K assignments · E experts · D hidden · F inner width
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.spec import Moe, Recipe
from contracts.stacks.reference.model.blocks.common import Output, Packing, PartsInterface, State, local
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE, SequenceView

Backend = Literal["grouped", "loop"]


class Routing(NamedTuple):
    """The routing of tokens: entry k of a token has an expert and its gate."""

    experts_BTK: Tensor
    gates_BTK: Tensor
    counts_E: Tensor
    losses: dict[str, Tensor]


class Router(nn.Module):
    """Chooses K distinct experts per token. `bias` affects the choice, never a gate, a loss or a gradient."""

    bias: Tensor | None
    logit_bias: Tensor | None
    summed: bool = True
    sequence: Callable[[Tensor], Tensor] | None = None
    """The mean over the ranks that share a sequence, if there are several."""
    product: torch.dtype | None = None
    """The dtype of the product, if it is not float32 at least."""
    token_BT: Tensor | None = None
    """Which positions hold a token, if not all."""

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        self.moe = _moe(recipe)
        self.weight = nn.Parameter(torch.empty(self.moe.experts, recipe.hidden))
        nn.init.normal_(self.weight, std=recipe.hidden**-0.5)
        self.register_buffer("bias", torch.zeros(self.moe.experts) if self.moe.selection_bias else None)
        added = nn.Parameter(torch.zeros(self.moe.experts)) if "router" in recipe.biases else None
        self.register_parameter("logit_bias", added)

    def forward(self, x_BTD: Tensor) -> Routing:
        logits_BTE = self.logits(x_BTD)
        scores_BTE = self.scores(logits_BTE)
        experts_BTK = self.choose(scores_BTE)
        gates_BTK = self.gates(scores_BTE, experts_BTK)
        if self.token_BT is not None:
            return Routing(experts_BTK, gates_BTK, *self.without_padding(logits_BTE, experts_BTK, self.token_BT))
        losses = {
            "aux": self.balance_loss(self.probabilities(logits_BTE), experts_BTK),
            "z": self.z_loss(logits_BTE),
        }
        return Routing(experts_BTK, gates_BTK, self.count(experts_BTK), losses)

    def without_padding(
        self, logits_BTE: Tensor, experts_BTK: Tensor, token_BT: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Counts and losses of only the tokens, row by row; a row without one is none."""
        rows = [
            (probability_TE[token_T][None], experts_TK[token_T][None])
            for probability_TE, experts_TK, token_T in zip(
                self.probabilities(logits_BTE), experts_BTK, token_BT, strict=True
            )
            if token_T.any()
        ]
        aux = sum((self.balance_loss(*row) for row in rows), logits_BTE.new_zeros(())) / max(len(rows), 1)
        losses = {"aux": aux, "z": self.z_loss(logits_BTE[token_BT][None])}
        return self.count(experts_BTK[token_BT][None]), losses

    def logits(self, x_BTD: Tensor) -> Tensor:
        """In float32 at least, because bfloat16 logits would choose other experts, whatever their product is in."""
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        product = self.product or wide
        logits_BTE = F.linear(x_BTD.to(product), local(self.weight, self.summed).to(product)).to(wide)
        return logits_BTE if self.logit_bias is None else logits_BTE + local(self.logit_bias, self.summed).to(wide)

    def scores(self, logits_BTE: Tensor) -> Tensor:
        """The scores by which experts are chosen: for softmax the logits, whose order it keeps."""
        return logits_BTE.sigmoid() if self.moe.score == "sigmoid" else logits_BTE

    def choose(self, scores_BTE: Tensor) -> Tensor:
        scores_BTE = scores_BTE.detach()
        if self.bias is not None:
            scores_BTE = scores_BTE + self.bias
        if self.moe.groups is not None:
            scores_BTE = self.of_best_groups(scores_BTE, *self.moe.groups)
        return scores_BTE.topk(self.moe.top_k, dim=-1).indices

    def of_best_groups(self, scores_BTE: Tensor, number: int, chosen: int) -> Tensor:
        """Scores of -inf outside of the groups whose two best scores add up to most (arXiv 2412.19437, 2.1.2)."""
        scores_BTgS = scores_BTE.view(*scores_BTE.shape[:-1], number, -1)
        best_BTc = scores_BTgS.topk(2, dim=-1).values.sum(-1).topk(chosen, dim=-1).indices
        other_BTg = torch.ones_like(scores_BTgS[..., 0], dtype=torch.bool).scatter(-1, best_BTc, False)
        return scores_BTgS.masked_fill(other_BTg.unsqueeze(-1), -torch.inf).flatten(-2)

    def gates(self, scores_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        if self.moe.top_k == 1 and self.moe.score == "softmax":
            scores_BTE = scores_BTE.softmax(-1)
        return self.weigh(scores_BTE.gather(-1, experts_BTK)) * self.moe.route_scale

    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        """Scores of the chosen experts, normalised over them if there are several."""
        if self.moe.top_k == 1:
            return chosen_BTK
        return chosen_BTK.softmax(-1) if self.moe.score == "softmax" else _shares(chosen_BTK)

    def count(self, experts_BTK: Tensor) -> Tensor:
        """Assignments to each expert (E), including dropped ones."""
        return _asked(experts_BTK.flatten(), self.moe.experts).sum(0)

    def probabilities(self, logits_BTE: Tensor) -> Tensor:
        """Scores normalised over all experts to the sum 1 for each token, without the bias."""
        return logits_BTE.softmax(-1) if self.moe.score == "softmax" else _shares(logits_BTE.sigmoid())

    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        """E · sum of f · P for each sequence, averaged over sequences; 1 for perfect balance.

        f is an expert's fraction of the sequence's assignments, P the sequence's mean probability of it
        (arXiv 2412.19437, eq. 17-20). The gradient flows through P only.
        """
        rows, tokens, _ = experts_BTK.shape
        asked_BE = _asked(experts_BTK.flatten(1), self.moe.experts).sum(1)
        fraction_BE = asked_BE.to(probabilities_BTE.dtype) / max(tokens * self.moe.top_k, 1)
        fraction_BE = fraction_BE if self.sequence is None else self.sequence(fraction_BE)
        mean_BE = probabilities_BTE.sum(1) / max(tokens, 1)
        return self.moe.experts * (fraction_BE * mean_BE).sum() / max(rows, 1)

    def z_loss(self, logits_BTE: Tensor) -> Tensor:
        """The mean over tokens of the squared log of the partition sum (arXiv 2202.08906, eq. 5)."""
        tokens = logits_BTE.shape[0] * logits_BTE.shape[1]
        return logits_BTE.logsumexp(-1).square().sum() / max(tokens, 1)


class Experts(nn.Module):
    """E small MLPs, applied to rows that are sorted by expert."""

    w3: Tensor | None
    b1: Tensor | None
    b2: Tensor | None
    b3: Tensor | None
    adds: bool = True
    """Whether this rank adds the bias of what ranks sum up."""
    fp8: nn.ModuleDict | None
    """Matrix name → its FP8 product, if the recipe has FP8 experts (blocks/fp8.py)."""

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        count, inner, hidden = _moe(recipe).experts, _moe(recipe).expert_hidden, recipe.hidden
        gated = recipe.activation == "swiglu"
        self.w1 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, inner))
        self.register_parameter("w3", nn.Parameter(torch.empty(count, inner, hidden)) if gated else None)
        for weight in self.parameters():
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        widths = {"b1": inner, "b2": hidden, "b3": inner if gated else 0} if "experts" in recipe.biases else {}
        for name in ("b1", "b2", "b3"):
            wide = widths.get(name)
            self.register_parameter(name, nn.Parameter(torch.zeros(count, wide)) if wide else None)
        self.register_module("fp8", None)

    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        """Apply each expert to its rows; expert e has the rows from ends_E[e - 1] to ends_E[e].

        Rows after the last end belong to no expert; their result is undefined.
        """
        up_SF = self.biased(self.matmul(x_SD, local(self.w1), ends_E), self.b1, ends_E)
        if self.w3 is None:
            inner_SF = up_SF.relu().square()
        else:
            inner_SF = F.silu(up_SF) * self.biased(self.matmul(x_SD, local(self.w3), ends_E), self.b3, ends_E)
        return self.biased(self.matmul(inner_SF, local(self.w2), ends_E), self.b2, ends_E, float(self.adds))

    def biased(self, out_SO: Tensor, bias_EO: Tensor | None, ends_E: Tensor, share: float = 1.0) -> Tensor:
        """Each row plus a share of its expert's bias; rows of no expert, which may hold anything, give no gradient."""
        if bias_EO is None:
            return out_SO
        expert_S = torch.searchsorted(ends_E, torch.arange(len(out_SO), device=out_SO.device), right=True)
        return out_SO + F.embedding(expert_S, F.pad(local(bias_EO) * share, (0, 0, 0, 1))).to(out_SO.dtype)

    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        """Row s times the transposed matrix of its expert: (S, I) and (E, O, I) give (S, O)."""
        if self.fp8 is not None:
            name = next(name for name, each in self.named_parameters(recurse=False) if each is weight_EOI)
            return self.fp8[name].grouped(x_SI, weight_EOI, ends_E)  # type: ignore[operator, no-any-return]  # torch's
        weight_EOI = weight_EOI.to(x_SI.dtype)
        if self.backend(x_SI) == "grouped":
            return F.grouped_mm(x_SI, weight_EOI.transpose(-2, -1), offs=ends_E.to(torch.int32))
        expert_S = torch.searchsorted(ends_E, torch.arange(len(x_SI), device=x_SI.device), right=True)
        out_SO = x_SI.new_zeros(len(x_SI), weight_EOI.shape[1])
        for expert, weight_OI in enumerate(weight_EOI):
            rows = (expert_S == expert).nonzero().squeeze(-1)
            out_SO = out_SO.index_copy(0, rows, F.linear(x_SI[rows], weight_OI))
        return out_SO

    def backend(self, x: Tensor) -> Backend:
        """The implementation of the product: torch's grouped kernel if it supports the dtype, device and widths.

        `torch.nn.functional.grouped_mm` is public from torch 2.10. It needs bfloat16, SM80 or a CPU, and rows of a
        multiple of 16 bytes. It leaves rows after the last end uninitialised, forward and backward.
        """
        widths = local(self.w1).shape[1:]
        aligned = all(width % 8 == 0 for width in widths)
        able = x.device.type == "cpu" or (x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 0))
        return "grouped" if x.dtype == torch.bfloat16 and aligned and able else "loop"


class Dispatcher(Protocol):
    """The communication of a layer whose experts are on several ranks (`expert_parallel.py`)."""

    def share(
        self, routed: Callable[[Tensor, Routing, Tensor], Tensor], x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor
    ) -> Tensor:
        """The result of `routed` for all tokens; ranks that hold the same tokens each compute a part of them."""
        ...

    def through(self, experts: Callable[[Tensor, Tensor], Tensor], x_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Send rows sorted by expert to the ranks of their experts, apply the experts, and send the results back."""
        ...


class MoE(nn.Module):
    """Router, experts and the shared expert. It has a `dispatcher` if the experts are on several ranks."""

    row: SequenceView = WHOLE_SEQUENCE
    dispatcher: Dispatcher | None

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        self.moe = _moe(recipe)
        self.router: Router = parts.router(recipe, parts)
        self.experts: Experts = parts.experts(recipe, parts)
        plain = replace(recipe, biases=())
        self.shared = parts.mlp(plain, self.moe.shared_hidden) if self.moe.shared_hidden else None
        self.dispatcher = None

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.router.token_BT = None if packing.padding_BT is None else ~packing.padding_BT
        routing = self.router(x_BTD)
        by_gate = self.moe.capacity_factor is not None and self.moe.drop_policy == "probs"
        dropped_BTK = self.drop_faintest(routing) if by_gate else self.drop(routing.experts_BTK)
        if self.dispatcher is None:
            y_BTD = self.routed(x_BTD, routing, dropped_BTK)
        else:
            y_BTD = self.dispatcher.share(self.routed, x_BTD, routing, dropped_BTK)
        if self.shared is not None:
            y_BTD = y_BTD + self.shared(x_BTD, packing, state).y_BTD
        seen = {"experts": routing.experts_BTK, "gates": routing.gates_BTK.detach(), "counts": routing.counts_E}
        return Output(y_BTD.to(x_BTD.dtype), routing.losses, seen=seen | {"dropped": dropped_BTK})

    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        """The gated sum of each token's experts, in the gates' dtype."""
        slots_S = routing.experts_BTK.masked_fill(dropped_BTK, self.moe.experts).flatten()
        narrow = torch.int16 if self.moe.experts < 1 << 15 else torch.int64  # a radix sort takes a pass for each byte
        slots_S, order_S = slots_S.to(narrow).sort(stable=True)  # dropped ones sort after the last expert
        every_E = torch.arange(self.moe.experts, dtype=narrow, device=slots_S.device)
        ends_E = torch.searchsorted(slots_S, every_E, right=True)
        kept_E = ends_E.diff(prepend=ends_E.new_zeros(1))
        sent_SD = self.dispatch(x_BTD.flatten(0, 1), order_S, dropped_BTK)
        given_SD = self.applied(sent_SD, kept_E)
        y_ND = self.combine(given_SD, order_S, routing.gates_BTK.flatten(0, 1), dropped_BTK.flatten(0, 1))
        return y_ND.view(x_BTD.shape)

    def applied(self, sent_SD: Tensor, kept_E: Tensor) -> Tensor:
        """Apply each row's expert to it."""
        if self.dispatcher is not None:
            return self.dispatcher.through(self.experts, sent_SD, kept_E)
        given_SD: Tensor = self.experts(sent_SD, kept_E.cumsum(0))
        return given_SD

    def drop(self, experts_BTK: Tensor) -> Tensor:
        """Which assignments have no slot, (B, T, K): the first ones in token order are kept."""
        if self.moe.capacity_factor is None:
            return torch.zeros_like(experts_BTK, dtype=torch.bool)
        every_BSK = self.row.every(experts_BTK)  # slots are given in the order of the full rows
        asked_NE = _asked(every_BSK.flatten(0, 1), self.moe.experts).sum(1)
        if self.router.token_BT is not None:
            asked_NE = asked_NE * self.row.every(self.router.token_BT).flatten().unsqueeze(-1)
        taken_NE = asked_NE.cumsum(0)
        place_NK = taken_NE.gather(1, every_BSK.flatten(0, 1))  # 1 for the first token of an expert
        return self.row.own((place_NK > self.capacity(len(place_NK))).view(every_BSK.shape))

    def drop_faintest(self, routing: Routing) -> Tensor:
        """Which assignments have no slot, (B, T, K): those with the greatest gates are kept, of equal ones the first.

        Padding asks for no slot.
        """
        every_BSK = self.row.every(routing.experts_BTK)
        gates_NK = self.row.every(routing.gates_BTK.detach()).flatten(0, 1)
        strength_NE = gates_NK.new_full((len(gates_NK), self.moe.experts), -torch.inf)
        strength_NE.scatter_(1, every_BSK.flatten(0, 1), gates_NK)
        if self.router.token_BT is not None:
            padding_N1 = ~self.row.every(self.router.token_BT).flatten().unsqueeze(-1)
            strength_NE.masked_fill_(padding_N1, -torch.inf)
        place_NE = strength_NE.argsort(dim=0, descending=True, stable=True).argsort(dim=0)  # 0 for the greatest
        place_NK = place_NE.gather(1, every_BSK.flatten(0, 1))
        return self.row.own((place_NK >= self.capacity(len(place_NK))).view(every_BSK.shape))

    def capacity(self, tokens: int) -> int:
        """Slots of an expert in a call with this number of tokens."""
        assert self.moe.capacity_factor is not None
        return math.ceil(self.moe.capacity_factor * tokens * self.moe.top_k / self.moe.experts)

    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        """A copy of each token for each of its experts, sorted by expert.

        Copies are made before the sort. So the gradients of a token's copies are added in one sum over K, instead of an
        indexed add that rounds K times.
        """
        copies_NKD = x_ND.unsqueeze(1).expand(-1, self.moe.top_k, -1)
        if self.moe.capacity_factor is not None:  # keeps the undefined gradients of rows without an expert out of x
            copies_NKD = copies_NKD.masked_fill(dropped_BTK.flatten(0, 1).unsqueeze(-1), 0)
        return scattered(copies_NKD.flatten(0, 1), inverse(order_S))

    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        """The experts' outputs in token order, times their gates, summed over K in the gates' dtype."""
        given_NKD = gathered(given_SD, inverse(order_S)).view(*gates_NK.shape, given_SD.shape[-1])
        if self.moe.capacity_factor is not None:  # masked, not multiplied: 0 · NaN is NaN
            given_NKD = given_NKD.masked_fill(dropped_NK.unsqueeze(-1), 0)
            gates_NK = gates_NK.masked_fill(dropped_NK, 0)
        return (given_NKD.to(gates_NK.dtype) * gates_NK.unsqueeze(-1)).sum(1)

    def backend(self, x: Tensor) -> Backend:
        """The implementation that would multiply activations like `x` with the experts' matrices."""
        return self.experts.backend(x)

    @staticmethod
    def weight_of(recipe: Recipe, loss: str) -> float:
        """The coefficient of an auxiliary loss in the objective."""
        return {"aux": _moe(recipe).aux_loss, "z": _moe(recipe).z_loss}[loss]

    @staticmethod
    @torch.no_grad()
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        """Update a router's selection bias by one step, in place (arXiv 2408.15664, algorithm 1).

        `counts_E` are the assignments of the whole optimizer step: of every microbatch and every data-parallel rank.
        The bias of an expert below the mean rises by `rate`, above the mean it falls, at the mean it stays.
        """
        load_E = counts_E.to(torch.float64)
        bias_E.add_((load_E.mean() - load_E).sign().to(bias_E), alpha=rate)


def _moe(recipe: Recipe) -> Moe:
    assert recipe.moe is not None, "a mixture of experts is built of a recipe that has one"
    return recipe.moe


def _shares(scores: Tensor) -> Tensor:
    """Scores over their sum along the last dim, however faint they are; where every score is 0, zeros."""
    total = scores.sum(-1, keepdim=True)
    return scores / total.masked_fill(total == 0, 1)


def _asked(experts: Tensor, size: int) -> Tensor:
    """Whether an assignment is to an expert, with the experts as one more dim."""
    return experts.unsqueeze(-1) == torch.arange(size, device=experts.device)


def inverse(order_S: Tensor) -> Tensor:
    """The permutation that undoes another."""
    return scattered(torch.arange(len(order_S), device=order_S.device), order_S)


def scattered(rows: Tensor, to_S: Tensor) -> Tensor:
    """Row s at place to_S[s], each place once. The gradient is a gather."""
    return rows.new_empty(rows.shape).index_put_((to_S,), rows)


class _Gathered(torch.autograd.Function):
    """The gradient of `rows[from_S]` as a scatter, if no row is taken twice: autograd's own adds rows into zeros."""

    @staticmethod
    def forward(ctx: Any, rows_SD: Tensor, from_S: Tensor) -> Tensor:
        ctx.save_for_backward(from_S)
        return rows_SD[from_S]

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor, None]:
        return scattered(given[0], *ctx.saved_tensors), None


gathered = cast(Callable[[Tensor, Tensor], Tensor], _Gathered.apply)
"""Rows in another order."""
