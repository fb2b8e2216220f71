"""Scripts that leave parameters out, keep old gradients, untie weights or compute with NaN."""

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference

PARAMETERS = "AdamW(model.parameters(), lr=1e-3)"


@mutant(of="OBS-03", case="one-run", says="norm.weight is trainable and in no optimizer that stepped")
class LeavesTheNormsOut(Reference):
    """The groups of the optimizer are written by hand, and the norms are in none."""

    edits = {PARAMETERS: "AdamW([p for p in model.parameters() if p.dim() > 1], lr=1e-3)"}


@mutant(of="OBS-03", case="one-run", says="embed.weight is trainable and in 2 optimizers")
class StepsTwice(Reference):
    """Two optimizers hold the embedding."""

    edits = {
        PARAMETERS: PARAMETERS + "\n    other = torch.optim.SGD([net.embed.weight], lr=1e-3)",
        "        optimizer.step()": "        optimizer.step()\n        other.step()",
    }


@mutant(
    of="OBS-03", case="one-run", says="gradients are left from the step before on rank 0, such as that of embed.weight"
)
class NeverZeroes(Reference):
    """Gradients of all steps add up."""

    edits = {"        optimizer.zero_grad()\n": ""}


@mutant(of="OBS-03", case="one-run", says="norm.weight is frozen and moved")
class DecaysWhatIsFrozen(Reference):
    """Weights are decayed by hand, those without gradients too."""

    edits = {
        "    model = DistributedDataParallel(": "    net.norm.weight.requires_grad_(False)\n"
                                                "    model = DistributedDataParallel(",
        "        optimizer.step()": "        optimizer.step()\n"
                                    "        for each in net.parameters():\n"
                                    "            each.data.mul_(0.99)",
    }  # fmt: skip


@mutant(of="OBS-05", case="one-run", says="embed.weight and head.weight were one parameter when they were built")
class UntiesBehindTheWrapper(Reference):
    """The head gets weights of its own when the embedding's are loaded."""

    edits = {"    torch.manual_seed(100": "    net.head.weight = nn.Parameter(net.embed.weight.detach().clone())\n"
             "    torch.manual_seed(100"}  # fmt: skip


@mutant(of="OBS-15", case="one-run", says="step 1: the loss on rank 0 is inf")
class DividesByNothing(Reference):
    """A mean over no label."""

    edits = {"model(rows) / 2": "model(rows) / 0"}


@mutant(of="OBS-15", case="one-run", says="(exp_avg) is bfloat16, and its weight float32")
class KeepsNarrowMoments(Reference):
    """An optimizer that keeps its moments in bfloat16 to save memory, and says nothing."""

    edits = {
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
    }
