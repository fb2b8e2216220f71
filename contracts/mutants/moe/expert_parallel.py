"""Expert parallel with one bug each: rows that travel, gates, losses, counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread, routed
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import MoE, Routing
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel.collectives import (
    all_gather,
    gather_rows,
    own_rows,
    split_rows,
    sum_over_ranks,
)
from contracts.stacks.reference.parallel.expert_parallel import Experts, TokenDispatcher
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer

Routed = Callable[[Tensor, Routing, Tensor], Tensor]


class _AsTheyCame(TokenDispatcher):
    def by_expert(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        return experts(x_RD, counts_ne.sum(0).cumsum(0))


@mutant(of="MOE-07a", case="ep2", says="on one rank", bugs=("DSP-02",))
class TakesRowsBySenderForRowsByExpert(Spread):
    """Received rows are ordered by sender and then by expert, and go through the experts as if ordered by expert."""

    exchange = {"token_dispatcher": _AsTheyCame}


class _ThereAgain(TokenDispatcher):
    def by_expert(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        expert_R = torch.arange(counts_ne.shape[1]).repeat(len(counts_ne)).repeat_interleave(counts_ne.flatten())
        order_R = expert_R.argsort(stable=True)
        return experts(x_RD[order_R], counts_ne.sum(0).cumsum(0))[order_R]


@mutant(of="MOE-02f", case="ep2", says="on one rank")
class PutsRowsBackByTheOrderTheyWentIn(Spread):
    """The permutation is applied again instead of its inverse: right for two rows, wrong for three."""

    exchange = {"token_dispatcher": _ThereAgain}


class _WithoutGradientThere(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        return super().through(experts, x_SD.detach(), counts_E)


@mutant(of="MOE-07a", case="ep2", says="the gradient of")
class SendsRowsByACallThatDropsTheGraph(Spread):
    """`dist.all_to_all_single` in place: rows arrive, and no gradient comes back from the experts."""

    exchange = {"token_dispatcher": _WithoutGradientThere}


class _WithoutGradientBack(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        y_SD = super().through(experts, x_SD, counts_E)
        return y_SD.detach() + 0 * x_SD


@mutant(of="MOE-07a", case="borrowed-ep2", says="experts.w1 differs")
class ReturnsRowsByACallThatDropsTheGraph(Spread):
    """The same call on the way back: experts never learn, while shared expert and residual carry the loss."""

    exchange = {"token_dispatcher": _WithoutGradientBack}


class _Shares(TokenDispatcher):
    """`share` split into parts that a mutant can replace one by one."""

    def gates(self, gates_NK: Tensor) -> Tensor:
        return split_rows(gates_NK, self.sharers)

    def run(self, x_ND: Tensor) -> Tensor:
        return split_rows(x_ND, self.sharers)

    def back(self, y_SD: Tensor, rows: int) -> Tensor:
        return gather_rows(y_SD, rows, self.sharers)

    def share(self, routed: Routed, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        if self.sharers is None:
            return super().share(routed, x_BTD, routing, dropped_BTK)
        x_ND = x_BTD.flatten(0, 1)
        mine = routing._replace(
            experts_BTK=own_rows(routing.experts_BTK.flatten(0, 1), self.sharers)[None],
            gates_BTK=self.gates(routing.gates_BTK.flatten(0, 1))[None],
        )
        dropped = own_rows(dropped_BTK.flatten(0, 1), self.sharers)[None]
        y_SD = routed(self.run(x_ND)[None], mine, dropped)[0]
        return self.back(y_SD, len(x_ND)).view(x_BTD.shape)


class _GatesOfItsRun(_Shares):
    def gates(self, gates_NK: Tensor) -> Tensor:
        return own_rows(gates_NK, self.sharers)


@mutant(of="MOE-07a", case="ep2", says="router.weight differs", bugs=("SP-19",))
class LeavesTheGradientOfGatesInParts(Spread):
    """Ranks that route the same tokens each weigh a part of them, and nobody adds up the gradients of the gates."""

    exchange = {"token_dispatcher": _GatesOfItsRun}


class _GatesWithoutGradient(_Shares):
    def gates(self, gates_NK: Tensor) -> Tensor:
        return own_rows(gates_NK, self.sharers).detach()


@mutant(of="MOE-07a", case="ep2", says="router.weight differs", bugs=("SP-18",), leanest="experts.w1 differs")
class GathersGatesWithoutTheirGradient(Spread):
    """Gates come from a collective that autograd does not see: the router learns balance and nothing of the task."""

    exchange = {"token_dispatcher": _GatesWithoutGradient}


class _RowsOfItsRun(_Shares):
    def run(self, x_ND: Tensor) -> Tensor:
        return own_rows(x_ND, self.sharers)


@mutant(of="MOE-07a", case="ep2", says="the gradient of")
class LeavesTheGradientOfRowsInParts(Spread):
    """Each rank that holds the same tokens keeps the gradient of the rows that it sent, and zeros elsewhere."""

    exchange = {"token_dispatcher": _RowsOfItsRun}


class _BackSummed(_Shares):
    def back(self, y_SD: Tensor, rows: int) -> Tensor:
        return all_gather(y_SD, 0, self.sharers)


@mutant(of="MOE-07a", case="ep2", says="experts.w1 differs", bugs=("DPS-06",))
class MultipliesExpertGradientsByEp(Spread):
    """Outputs come back by an all-gather whose backward sums: every sharer has the same gradient, so experts get EP
    times too much.
    """

    exchange = {"token_dispatcher": _BackSummed}


class _AllRows(TokenDispatcher):
    def share(self, routed: Routed, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        return routed(x_BTD, routing, dropped_BTK)


@mutant(of="MOE-07a", case="ep2", says="experts.w1 differs", bugs=("EPD-09",))
class EveryRankSendsAllItsRows(Spread):
    """Ranks that hold the same tokens all send them: outputs are right, but experts see each token EP times."""

    exchange = {"token_dispatcher": _AllRows}


class _OwnPartAlone(TokenDispatcher):
    def with_all_parts(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        return self.by_expert(experts, x_RD, counts_ne)


@mutant(of="MOE-07b", case="borrowed-tp2-sp-ep2-etp2-fsdp", says="on one rank", bugs=("DSP-11",))
class LeavesOutThePartsOfOtherRanks(Spread):
    """Experts are sharded over two ranks, and each puts only its own rows through its half."""

    exchange = {"token_dispatcher": _OwnPartAlone}


class _MeanOfParts(TokenDispatcher):
    def with_all_parts(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        y_RD = super().with_all_parts(experts, x_RD, counts_ne)
        return y_RD if self.etp is None else y_RD / dist.get_world_size(self.etp)


@mutant(of="MOE-07b", case="borrowed-tp2-sp-ep2-etp2-fsdp", says="on one rank")
class AveragesThePartsOfAnExpert(Spread):
    """The partial outputs of a sharded inner width are averaged instead of summed."""

    exchange = {"token_dispatcher": _MeanOfParts}


class _SharedTwice(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        if self.dispatcher is None or self.shared is None:
            return out
        return out._replace(y_BTD=out.y_BTD + self.shared(x_BTD, packing, state).y_BTD)


@mutant(of="MOE-07a", case="ep2", says="on one rank", bugs=("DSP-16",), leanest="")
class AddsTheSharedExpertTwice(Spread):
    """With expert parallel, the shared expert is added before the rows come back and again after."""

    exchange = {"moe": _SharedTwice}


class _IdleWithoutGradient(TokenDispatcher):
    """Rows of experts beside the first pass in the forward pass alone."""

    def by_expert(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        y_RD = super().by_expert(experts, x_RD, counts_ne)
        return y_RD if bool((counts_ne.sum(0) > 0).all()) else y_RD.detach()


@mutant(of="MOE-02f", case="ep2", says="the gradient of", bugs=("DSP-22",))
class GivesNoGradientWhereAnExpertIsIdle(Spread):
    """On a rank where one expert has no token, the backward pass is skipped for all of them."""

    exchange = {"token_dispatcher": _IdleWithoutGradient}


# losses that balance
class _FractionOfItsRun(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            if self.mesh.lane and self.execution.degrees.sp:
                moe.router.sequence = lambda fraction_BE: fraction_BE
        return model


@mutant(of="MOE-05f", case="tp2-sp-etp1", says="aux is")
class BalancesEachRunBySelf(Spread):
    """Each rank has a part of every sequence and weighs its own load by its own probabilities."""

    trains = _FractionOfItsRun


class _FractionsAddedUp(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            if self.mesh.lane and self.execution.degrees.sp:
                moe.router.sequence = lambda fraction_BE: sum_over_ranks(fraction_BE, self.mesh.group("tp"))
        return model


@mutant(of="MOE-05f", case="tp2-sp-etp1", says="aux is", bugs=("AUX-01",))
class MultipliesTheBalanceLossByTp(Spread):
    """The ranks' fractions are summed and not divided, so the loss and its gradient are TP times too large."""

    trains = _FractionsAddedUp


class _ZOfItsOwn(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().over_parts(values) | {name: each for name, each in values.items() if name == "z"}


@mutant(of="MOE-05f", case="dp2", says="z is", bugs=("AUX-15",))
class TellsTheZLossOfItsOwnTokens(Spread):
    """The reported z loss covers this rank's tokens only."""

    trains = _ZOfItsOwn


class _BalanceForgotten(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            moe.register_forward_hook(_without_gradient)
        return model


def _without_gradient(_: object, args: object, out: Output) -> Output:
    return out._replace(losses={name: loss.detach() for name, loss in out.losses.items()})


@mutant(of="MOE-05f", case="ep2", says="router.weight differs")
class LogsTheBalanceLossAlone(Spread):
    """The loss is reported right, and never reaches the router."""

    trains = _BalanceForgotten


# counts and biases
class _MovesByItsOwn(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(self.mine)

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        self.mine = {name: each for name, each in values.items() if name.endswith(".counts")} or getattr(
            self, "mine", {}
        )
        return super().over_parts(values)


@mutant(of="MOE-06c", case="dp2", says="router.bias differs")
class MovesBiasesByTheCountsOfOneRank(Spread):
    """Each rank moves its biases by its own tokens, so copies of one router choose differently."""

    trains = _MovesByItsOwn


class _MovesTheFirst(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        first = min(name for name in seen if name.endswith(".counts"))
        super().move_biases({name: each if name == first else each * 0 for name, each in seen.items()})


@mutant(of="MOE-06c", case="fsdp2", says="router.bias differs")
class MovesTheBiasesOfOneLayer(Spread):
    """Counts of the first layer are summed over the ranks; those of the other layers are lost."""

    trains = _MovesTheFirst


class _MovesPerRank(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        for _ in range(self.execution.world):
            super().move_biases(seen)


@mutant(of="MOE-06c", case="ep2", says="router.bias differs")
class MovesBiasesOnceARank(Spread):
    """The hook that moves the biases is registered once for each rank, so moves are WORLD times too long."""

    trains = _MovesPerRank


class _CountsSharers(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        found = super().over_parts(values)
        group = self.mesh.group("ep")
        return {name: sum_over_ranks(each, group) if name.endswith(".counts") else each for name, each in found.items()}


@mutant(of="MOE-06c", case="ep2", says="assignments, expected")
class CountsTokensOnceForEachSharer(Spread):
    """Over-correction: ranks that routed the same tokens are summed too. The sign does not show it; the counts do."""

    trains = _CountsSharers


class _SharesEvenly(TokenDispatcher):
    """Shares tokens as if their number divided: what is left over is no rank's."""

    def share(self, routed: Routed, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        if self.sharers is None:
            return super().share(routed, x_BTD, routing, dropped_BTK)
        rows = x_BTD.shape[0] * x_BTD.shape[1]
        kept = rows - rows % dist.get_world_size(self.sharers)
        even = routing._replace(
            experts_BTK=routing.experts_BTK.flatten(0, 1)[None, :kept],
            gates_BTK=routing.gates_BTK.flatten(0, 1)[None, :kept],
        )
        x_ND, dropped_NK = x_BTD.flatten(0, 1), dropped_BTK.flatten(0, 1)
        y_BTD = super().share(routed, x_ND[None, :kept], even, dropped_NK[None, :kept])
        return torch.cat([y_BTD[0], torch.zeros_like(x_ND[kept:])]).view(x_BTD.shape)


@mutant(of="MOE-07c", case="sharers-ep2", says="on one rank", bugs=("DSP-20",))
@mutant(of="MOE-07c", case="sharers-tp2-etp1", says="on one rank", bugs=("DSP-20",))
class GathersSharesAsIfTheyWereEqual(Spread):
    """Shares of tokens are cut and gathered as equal ones: the last token gets nothing of its experts."""

    exchange = {"token_dispatcher": _SharesEvenly}


class _FixedBuffer(TokenDispatcher):
    """A buffer of as many rows a sender as the fewest that any rank brings."""

    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        fewest = torch.tensor(len(x_SD))
        dist.all_reduce(fewest, op=dist.ReduceOp.MIN, group=self.ep)
        kept = torch.zeros(len(x_SD), 1, dtype=x_SD.dtype)
        kept[: int(fewest)] = 1
        return super().through(experts, x_SD, counts_E) * kept


@mutant(of="MOE-07c", case="senders-borrowed-ep2", says="on one rank", bugs=("DSP-14",))
class SendsABufferOfFixedSize(Spread):
    """The dispatcher's buffers are as long as the first rank's: rows behind them are not sent, and nobody waits."""

    exchange = {"token_dispatcher": _FixedBuffer}
