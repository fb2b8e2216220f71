"""Scripts that leave parameters out, keep old gradients, untie weights or compute with NaN."""

from contracts.law._bugs.broken import with_attributes

PARAMETERS = "AdamW(model.parameters(), lr=1e-3)"


with_attributes(
    "LeavesTheNormsOut",
    "The groups of the optimizer are written by hand, and the norms are in none.",
    "OBS-03[one-run]: norm.weight is trainable and in no optimizer that stepped",
    edits={PARAMETERS: "AdamW([p for p in model.parameters() if p.dim() > 1], lr=1e-3)"},
)

with_attributes(
    "StepsTwice",
    "Two optimizers hold the embedding.",
    "OBS-03[one-run]: embed.weight is trainable and in 2 optimizers",
    edits={
        PARAMETERS: PARAMETERS + "\n    other = torch.optim.SGD([net.embed.weight], lr=1e-3)",
        "        optimizer.step()": "        optimizer.step()\n        other.step()",
    },
)

with_attributes(
    "NeverZeroes",
    "Gradients of all steps add up.",
    "OBS-03[one-run]: gradients are left from the step before on rank 0, such as that of embed.weight",
    edits={"        optimizer.zero_grad()\n": ""},
)

with_attributes(
    "DecaysWhatIsFrozen",
    "Weights are decayed by hand, those without gradients too.",
    "OBS-03[one-run]: norm.weight is frozen and moved",
    edits={
        "    model = DistributedDataParallel(": "    net.norm.weight.requires_grad_(False)\n"
        "    model = DistributedDataParallel(",
        "        optimizer.step()": "        optimizer.step()\n"
        "        for each in net.parameters():\n"
        "            each.data.mul_(0.99)",
    },
)

with_attributes(
    "UntiesBehindTheWrapper",
    "The head gets weights of its own when the embedding's are loaded.",
    "OBS-05[one-run]: embed.weight and head.weight were one parameter when they were built",
    edits={
        "    torch.manual_seed(100": "    net.head.weight = nn.Parameter(net.embed.weight.detach().clone())\n"
        "    torch.manual_seed(100"
    },
)

with_attributes(
    "DividesByNothing",
    "A mean over no label.",
    "OBS-15[one-run]: step 1: the loss on rank 0 is inf",
    edits={"model(rows) / 2": "model(rows) / 0"},
)

with_attributes(
    "KeepsNarrowMoments",
    "An optimizer that keeps its moments in bfloat16 to save memory, and says nothing.",
    "OBS-15[one-run]: (exp_avg) is bfloat16, and its weight float32",
    edits={
        f"torch.optim.{PARAMETERS}": "Narrow(model.parameters(), lr=1e-3)",
        "def main()": """class Narrow(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            moment = self.state[p].setdefault("exp_avg", torch.zeros_like(p, dtype=torch.bfloat16))
            moment.mul_(0.9).add_(p.grad.bfloat16(), alpha=0.1)
            p.add_(moment.float(), alpha=-self.param_groups[0]["lr"])


def main()""",
    },
)
