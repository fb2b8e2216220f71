"""Expert parallel with one bug each: rows that travel, gates, losses, counts."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.law._bugs.multi_rank import routed
from contracts.law._bugs.numeric import (
    MoE,
    Output,
    ParallelTrainer,
    Routing,
    TokenDispatcher,
    all_gather,
    broken,
    derived,
    own_rows,
    sum_over_ranks,
)
from contracts.stacks.reference.parallel.collectives import gather_rows, split_rows

Routed = Callable[[Tensor, Routing, Tensor], Tensor]


@broken(TokenDispatcher, "by_expert", "MOE-07a[ep2]: on one rank", bugs=("DSP-02",))
def takes_rows_by_sender_for_rows_by_expert(by_expert, self, experts, x_RD, counts_ne):
    """Received rows are ordered by sender and then by expert, and go through the experts as if ordered by expert."""
    return experts(x_RD, counts_ne.sum(0).cumsum(0))


@broken(TokenDispatcher, "by_expert", "MOE-02f[ep2]: on one rank")
def puts_rows_back_by_the_order_they_went_in(by_expert, self, experts, x_RD, counts_ne):
    """The permutation is applied again instead of its inverse: right for two rows, wrong for three."""
    expert_R = torch.arange(counts_ne.shape[1]).repeat(len(counts_ne)).repeat_interleave(counts_ne.flatten())
    order_R = expert_R.argsort(stable=True)
    return experts(x_RD[order_R], counts_ne.sum(0).cumsum(0))[order_R]


@broken(TokenDispatcher, "through", "MOE-07a[ep2]: the gradient of")
def sends_rows_by_a_call_that_drops_the_graph(through, self, experts, x_SD, counts_E):
    """`dist.all_to_all_single` in place: rows arrive, and no gradient comes back from the experts."""
    return through(self, experts, x_SD.detach(), counts_E)


@broken(
    TokenDispatcher, "through", "MOE-07a[borrowed-ep2]: experts.w1 differs", "PAR-01e[borrowed-ep2]: the gradient of"
)
def returns_rows_by_a_call_that_drops_the_graph(through, self, experts, x_SD, counts_E):
    """The same call on the way back: experts never learn, while shared expert and residual carry the loss."""
    y_SD = through(self, experts, x_SD, counts_E)
    return y_SD.detach() + 0 * x_SD


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


@broken(_Shares, "gates", "MOE-07a[ep2]: router.weight differs", "PAR-01e[ep2]: the gradient of", bugs=("SP-19",))
def leaves_the_gradient_of_gates_in_parts(gates, self, gates_NK):
    """Ranks that route the same tokens each weigh a part of them, and nobody adds up the gradients of the gates."""
    return own_rows(gates_NK, self.sharers)


@broken(_Shares, "gates", "MOE-07a[ep2]: router.weight differs", bugs=("SP-18",), leanest="experts.w1 differs")
def gathers_gates_without_their_gradient(gates, self, gates_NK):
    """Gates come from a collective that autograd does not see: the router learns balance and nothing of the task."""
    return own_rows(gates_NK, self.sharers).detach()


@broken(_Shares, "run", "MOE-07a[ep2]: the gradient of")
def leaves_the_gradient_of_rows_in_parts(run, self, x_ND):
    """Each rank that holds the same tokens keeps the gradient of the rows that it sent, and zeros elsewhere."""
    return own_rows(x_ND, self.sharers)


@broken(_Shares, "back", "MOE-07a[ep2]: experts.w1 differs", bugs=("DPS-06",))
def multiplies_expert_gradients_by_ep(back, self, y_SD, rows):
    """Outputs come back by an all-gather whose backward sums: every sharer has the same gradient, so experts get EP
    times too much.
    """
    return all_gather(y_SD, 0, self.sharers)


@broken(
    TokenDispatcher, "share", "MOE-07a[ep2]: experts.w1 differs",
    "TRAF-04d[tp2-sp-ep2-fsdp2-balanced]: : 2 times", bugs=("EPD-09", "DSP-11"),
)  # fmt: skip
def every_rank_sends_all_its_rows(share, self, routed, x_BTD, routing, dropped_BTK):
    """Ranks that hold the same tokens all send them: outputs are right, but experts see each token EP times."""
    return routed(x_BTD, routing, dropped_BTK)


@broken(TokenDispatcher, "with_all_parts", "MOE-07b[borrowed-tp2-sp-ep2-etp2-fsdp]: on one rank", bugs=("DSP-11",))
def leaves_out_the_parts_of_other_ranks(with_all_parts, self, experts, x_RD, counts_ne):
    """Experts are sharded over two ranks, and each puts only its own rows through its half."""
    return self.by_expert(experts, x_RD, counts_ne)


@broken(TokenDispatcher, "with_all_parts", "MOE-07b[borrowed-tp2-sp-ep2-etp2-fsdp]: on one rank")
def averages_the_parts_of_an_expert(with_all_parts, self, experts, x_RD, counts_ne):
    """The partial outputs of a sharded inner width are averaged instead of summed."""
    y_RD = with_all_parts(self, experts, x_RD, counts_ne)
    return y_RD if self.etp is None else y_RD / dist.get_world_size(self.etp)


@broken(MoE, "forward", "MOE-07a[ep2]: on one rank", bugs=("DSP-16",), leanest="")
def adds_the_shared_expert_twice(forward, self, x_BTD, packing, state):
    """With expert parallel, the shared expert is added before the rows come back and again after."""
    out = forward(self, x_BTD, packing, state)
    if self.dispatcher is None or self.shared is None:
        return out
    return out._replace(y_BTD=out.y_BTD + self.shared(x_BTD, packing, state).y_BTD)


@broken(TokenDispatcher, "by_expert", "MOE-02f[ep2]: the gradient of", bugs=("DSP-22",))
def gives_no_gradient_where_an_expert_is_idle(by_expert, self, experts, x_RD, counts_ne):
    """On a rank where one expert has no token, the backward pass is skipped for all of them."""
    y_RD = by_expert(self, experts, x_RD, counts_ne)
    return y_RD if bool((counts_ne.sum(0) > 0).all()) else y_RD.detach()


# losses that balance
@broken(ParallelTrainer, "build", "MOE-05f[tp2-sp-etp1]: aux is")
def balances_each_run_by_self(build, self):
    """Each rank has a part of every sequence and weighs its own load by its own probabilities."""
    model = build(self)
    for moe in routed(model):
        if self.mesh.lane and self.execution.degrees.sp:
            moe.router.sequence = lambda fraction_BE: fraction_BE
    return model


@broken(ParallelTrainer, "build", "MOE-05f[tp2-sp-etp1]: aux is", bugs=("AUX-01",))
def multiplies_the_balance_loss_by_tp(build, self):
    """The ranks' fractions are summed and not divided, so the loss and its gradient are TP times too large."""
    model = build(self)
    for moe in routed(model):
        if self.mesh.lane and self.execution.degrees.sp:
            moe.router.sequence = lambda fraction_BE: sum_over_ranks(fraction_BE, self.mesh.group("tp"))
    return model


@broken(ParallelTrainer, "over_parts", "MOE-05f[dp2]: z is", bugs=("AUX-15",))
def tells_the_z_loss_of_its_own_tokens(over_parts, self, values):
    """The reported z loss covers this rank's tokens only."""
    return over_parts(self, values) | {name: each for name, each in values.items() if name == "z"}


def _without_gradient(_: object, args: object, out: Output) -> Output:
    return out._replace(losses={name: loss.detach() for name, loss in out.losses.items()})


@broken(ParallelTrainer, "build", "MOE-05f[ep2]: router.weight differs")
def logs_the_balance_loss_alone(build, self):
    """The loss is reported right, and never reaches the router."""
    model = build(self)
    for moe in routed(model):
        moe.register_forward_hook(_without_gradient)
    return model


@derived("MOE-06c[dp2]: router.bias differs", "MOE-06e[dp2]: router.bias differs")
class MovesBiasesByTheCountsOfOneRank(ParallelTrainer):
    """Each rank moves its biases by its own tokens, so copies of one router choose differently."""

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(self.mine)

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        self.mine = {name: each for name, each in values.items() if name.endswith(".counts")} or getattr(
            self, "mine", {}
        )
        return super().over_parts(values)


@broken(ParallelTrainer, "move_biases", "MOE-06c[fsdp2]: router.bias differs")
def moves_the_biases_of_one_layer(move_biases, self, seen):
    """Counts of the first layer are summed over the ranks; those of the other layers are lost."""
    first = min(name for name in seen if name.endswith(".counts"))
    move_biases(self, {name: each if name == first else each * 0 for name, each in seen.items()})


@broken(ParallelTrainer, "move_biases", "MOE-06c[ep2]: router.bias differs")
def moves_biases_once_a_rank(move_biases, self, seen):
    """The hook that moves the biases is registered once for each rank, so moves are WORLD times too long."""
    for _ in range(self.execution.world):
        move_biases(self, seen)


@broken(ParallelTrainer, "over_parts", "MOE-06c[ep2]: assignments, expected", "MOE-06e[ep2]: assignments, expected")
def counts_tokens_once_for_each_sharer(over_parts, self, values):
    """Over-correction: ranks that routed the same tokens are summed too. The sign does not show it; the counts do."""
    found = over_parts(self, values)
    group = self.mesh.group("ep")
    return {name: sum_over_ranks(each, group) if name.endswith(".counts") else each for name, each in found.items()}


@broken(
    TokenDispatcher,
    "share",
    "MOE-07c[sharers-tp2-etp1]: on one rank",
    "MOE-07c[sharers-ep2]: on one rank",
    bugs=("DSP-20",),
)
def gathers_shares_as_if_they_were_equal(share, self, routed, x_BTD, routing, dropped_BTK):
    """Shares of tokens are cut and gathered as equal ones: the last token gets nothing of its experts."""
    if self.sharers is None:
        return share(self, routed, x_BTD, routing, dropped_BTK)
    rows = x_BTD.shape[0] * x_BTD.shape[1]
    kept = rows - rows % dist.get_world_size(self.sharers)
    even = routing._replace(
        experts_BTK=routing.experts_BTK.flatten(0, 1)[None, :kept],
        gates_BTK=routing.gates_BTK.flatten(0, 1)[None, :kept],
    )
    x_ND, dropped_NK = x_BTD.flatten(0, 1), dropped_BTK.flatten(0, 1)
    y_BTD = share(self, routed, x_ND[None, :kept], even, dropped_NK[None, :kept])
    return torch.cat([y_BTD[0], torch.zeros_like(x_ND[kept:])]).view(x_BTD.shape)


@broken(TokenDispatcher, "through", "MOE-07c[senders-borrowed-ep2]: on one rank", bugs=("DSP-14",))
def sends_a_buffer_of_fixed_size(through, self, experts, x_SD, counts_E):
    """The dispatcher's buffers are as long as the first rank's: rows after them are not sent, and nobody waits."""
    fewest = torch.tensor(len(x_SD))
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN, group=self.ep)
    kept = torch.zeros(len(x_SD), 1, dtype=x_SD.dtype)
    kept[: int(fewest)] = 1
    return through(self, experts, x_SD, counts_E) * kept
