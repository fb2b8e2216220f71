"""Scripts whose ranks drift apart, read the same rows, or issue different collectives."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference

WRAPPED = "    model = DistributedDataParallel(net, broadcast_buffers=False)"


@mutant(of="OBS-02", case="one-run", says="step 1: the weight down.weight has other bits on rank 1 than on rank 0")
class InitialisesALayerOnEachRank(Reference):
    """A layer is initialised again behind the wrapper, on each rank by its own seed."""

    edits = {WRAPPED: f"{WRAPPED}\n    torch.manual_seed(rank)\n    net.down.reset_parameters()"}


@mutant(
    of="OBS-02", case="one-run", says="step 1: the gradient of embed.weight has other bits on rank 1 than on rank 0"
)
class NeverReduces(Reference):
    """Every microbatch is under `no_sync`, so that no gradient is averaged over ranks."""

    edits = {"if micro == 0 else": "if True else"}


@mutant(of="OBS-02", case="one-run", says="step 1: the updated weight embed.weight has other bits on rank 1")
class GivesOneRankAnotherRate(Reference):
    """The learning rate is scaled by something that ranks do not agree on."""

    edits = {"lr=1e-3": "lr=1e-3 * (1 + rank)"}


@mutant(of="OBS-06", case="one-run", says="step 1: ranks 0 and 1 consume the same 4 rows")
class ReadsTheSameRows(Reference):
    """The sampler does not know its rank."""

    edits = {"[rank::world]": "[::world]"}


@mutant(
    of="OBS-10", case="one-run", says="is all_reduce(sum) 1 float32 on rank 0 and all_reduce(max) 1 float32 on rank 1"
)
class ReducesByAnotherOperation(Reference):
    """One rank takes the maximum where the other one takes the sum."""

    edits = {"op=dist.ReduceOp.SUM": "op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM"}


@mutant(of="OBS-12", case="one-run", says="step 1: the forward passes of ranks 0 and 1 draw the same random numbers")
class SeedsEveryRankAlike(Reference):
    """One seed for all ranks, so that dropout drops the same units everywhere."""

    edits = {"manual_seed(100 + rank)": "manual_seed(100)"}
