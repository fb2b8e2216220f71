"""Scripts that count assignments of experts twice or on one rank, balance another load, or lose rows."""

from contracts.law._bugs.broken import with_attributes

with_attributes(
    "CountsAgainWhereItRecomputes",
    "The experts are recomputed in the backward pass, and count again.",
    "OBS-14[one-run]: step 1: moe.tokens_per_expert counts 256 assignments on rank 0",
    edits={"x = x + self.moe(x)": "x = x + checkpoint(self.moe, x, use_reentrant=False)"},
)

with_attributes(
    "CountsOnOneRank",
    "The first rank counts for all, as it logs for all.",
    "OBS-14[one-run]: step 1: moe.tokens_per_expert counts 0 assignments on rank 1",
    edits={"if self.training:": "if self.training and dist.get_rank() == 0:"},
)

with_attributes(
    "BalancesEachRankAlone",
    "The counts of the ranks are never added up, so that each rank chooses by a bias of its own.",
    "OBS-14[one-run]: step 1: moe.expert_bias differs on rank 1 from rank 0",
    edits={"        dist.all_reduce(self.tokens_per_expert)\n": ""},
)

with_attributes(
    "HelpsTheBusyExperts",
    "The sign of the update is the wrong one: who has many assignments gets more.",
    "OBS-14[one-run]: step 1: moe.expert_bias moves by 0.01 for expert",
    edits={"self.expert_bias += 0.01": "self.expert_bias -= 0.01"},
)

with_attributes(
    "NeverBalances",
    "Counts, and never moves the bias.",
    "OBS-14[one-run]: step 1: moe.expert_bias stands still; expert",
    edits={"        net.moe.balance()\n": ""},
)

with_attributes(
    "CountsEvaluations",
    "What an evaluation routes counts for the next step.",
    "OBS-14[one-run]: step 2: moe.tokens_per_expert begins with 64 assignments on rank 0",
    edits={"if self.training:": "if True:"},
)

with_attributes(
    "ChoosesOneExpertTwice",
    "The second choice is the first one again.",
    "OBS-14[one-run]: step 1: moe.router gives 32 of 32 tokens the same expert twice on rank 0",
    edits={".topk(2).indices": ".topk(1).indices.expand(-1, -1, 2)"},
)


DISPATCH = {
    "class Experts(nn.Module):": """class Grouped(nn.Linear):
    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        every = super().forward(rows).unflatten(-1, (8, 16))
        return every[torch.arange(len(rows)), torch.arange(8).repeat_interleave(counts)]


class Experts(nn.Module):""",
    "nn.Linear(16, 8 * 16)": "Grouped(16, 8 * 16)",
    "        every = self.experts(x).unflatten(-1, (8, 16))\n": """        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten()[order].bincount(minlength=8)
        rows, every = x.flatten(0, 1), self.experts(x.flatten(0, 1)[order // 2], counts)
        every = every * scores.flatten()[order, None]
""",
    "weighted: torch.Tensor = scores[..., None] * every.gather(-2, chosen[..., None].expand(-1, -1, -1, 16))":
        "weighted: torch.Tensor = torch.zeros_like(rows).index_add(0, order // 2, every)",
    "return weighted.sum(-2)": "return weighted.view_as(x)",
}  # fmt: skip
"""Rows are sorted by their experts, and each is computed by its own one."""
LIST = DISPATCH | {
    "nn.Linear(16, 8 * 16)": "nn.ModuleList(nn.Linear(16, 16) for _ in range(8))",
    "        every = self.experts(x).unflatten(-1, (8, 16))\n": """        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten()[order].bincount(minlength=8)
        rows = x.flatten(0, 1)
        parts = zip(self.experts, rows[order // 2].split(counts.tolist()))
        every = torch.cat([expert(part) for expert, part in parts]) * scores.flatten()[order, None]
""",
}  # fmt: skip
"""The same with a module for each expert."""


with_attributes(
    "LosesTheLastRows",
    "The dispatch has room for fewer rows than there are.",
    "OBS-18[one-run]: step 1: 12 of 256 assignments of moe.router reach no expert, and 0 are",
    edits={each: new.replace("argsort(stable=True)", "argsort(stable=True)[:-3]") for each, new in DISPATCH.items()},
)

with_attributes(
    "ReportsFewerThanItDrops",
    "Each expert has room for so many rows, and one of those that are dropped in a pass is reported.",
    "OBS-18[one-run]: assignments of moe.router reach no expert, and 4 are reported as dropped",
    edits={
        each: new.replace("expert(part)", "expert(part[:6])")
        .replace(
            "        rows = x",
            """        kept = [
            place for part in order.split(counts.tolist()) for place in part[:6].tolist()
        ]
        observe.dropped(1)
        rows = x""",
        )
        .replace("scores.flatten()[order, None]", "scores.flatten()[kept, None]")
        .replace("index_add(0, order // 2", "index_add(0, torch.tensor(kept) // 2")
        for each, new in LIST.items()
    },
)
