"""Scripts that count assignments of experts twice or on one rank, or balance another load."""

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference


@mutant(of="OBS-14", case="one-run", says="step 1: moe.tokens_per_expert counts 256 assignments on rank 0")
class CountsAgainWhereItRecomputes(Reference):
    """The experts are recomputed in the backward pass, and count again."""

    edits = {"x = x + self.moe(x)": "x = x + checkpoint(self.moe, x, use_reentrant=False)"}


@mutant(of="OBS-14", case="one-run", says="step 1: moe.tokens_per_expert counts 0 assignments on rank 1")
class CountsOnOneRank(Reference):
    """The first rank counts for all, as it logs for all."""

    edits = {"if self.training:": "if self.training and dist.get_rank() == 0:"}


@mutant(of="OBS-14", case="one-run", says="step 1: moe.expert_bias is another on rank 1 than on rank 0")
class BalancesEachRankAlone(Reference):
    """The counts of the ranks are never added up, so that each rank chooses by a bias of its own."""

    edits = {"        dist.all_reduce(self.tokens_per_expert)\n": ""}


@mutant(of="OBS-14", case="one-run", says="step 1: moe.expert_bias moves by 0.01 for expert")
class HelpsTheBusyExperts(Reference):
    """The sign of the update is the wrong one: who has many assignments gets more."""

    edits = {"(self.tokens_per_expert.mean() - self.tokens_per_expert)":
             "(self.tokens_per_expert - self.tokens_per_expert.mean())"}  # fmt: skip


@mutant(of="OBS-14", case="one-run", says="step 1: moe.expert_bias stands still; expert")
class NeverBalances(Reference):
    """Counts, and never moves the bias."""

    edits = {"        net.moe.balance()\n": ""}


@mutant(of="OBS-14", case="one-run", says="step 2: moe.tokens_per_expert begins with 64 assignments on rank 0")
class CountsEvaluations(Reference):
    """What an evaluation routes counts for the next step."""

    edits = {"if self.training:": "if True:"}


@mutant(of="OBS-14", case="one-run", says="step 1: moe.router gives 32 of 32 tokens the same expert twice on rank 0")
class ChoosesOneExpertTwice(Reference):
    """The second choice is the first one again."""

    edits = {".topk(2).indices": ".topk(1).indices.expand(-1, -1, 2)"}
