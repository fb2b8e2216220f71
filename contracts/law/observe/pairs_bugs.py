"""Scripts that do something else on several ranks, after a resume, or where they recompute."""

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference

CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@mutant(of="OBS-01", case="spread", says="step 1, loss: loss: ")
class DividesTwice(Reference):
    """Divides the loss by the number of ranks, and DDP takes the mean."""

    edits = {"model(rows) / 2": "model(rows) / 2 / world"}


@mutant(of="OBS-01", case="spread", says="step 1, gradient: up.weight: differs by")
class AddsUpOneGradient(Reference):
    """One parameter has the sum of the ranks' gradients, and the others their mean."""

    edits = {CLIP: f"{CLIP}\n        net.up.weight.grad.mul_(world)"}


@mutant(of="OBS-01", case="spread", says="step 1, gradient: moe.experts.weight: differs by")
class HalvesInAWrapper(Reference):
    """On several ranks a wrapper gives each parameter another name, and each gradient is halved, which Adam hides."""

    edits = {
        "DistributedDataParallel(net,": "DistributedDataParallel(nn.Sequential(net) if world > 1 else net,",
        CLIP: f"{CLIP}\n        [each.grad.div_(world) for each in net.parameters()]",
    }


@mutant(of="OBS-09", case="resumed", says="step 1: the moment exp_avg of embed.weight differs from the whole run's")
class ForgetsTheMoments(Reference):
    """The optimizer begins anew after the resume."""

    edits = {'        optimizer.load_state_dict(kept["optimizer"])\n': ""}


@mutant(of="OBS-09", case="resumed", says="the inputs differ")
class ReadsFromTheBeginning(Reference):
    """The data begin anew after the resume."""

    edits = {'        data.set_state(kept["data"])\n': ""}


@mutant(of="OBS-09", case="resumed", says="step 1: the random state before microbatch 1 differs from the whole run's")
class DrawsFromTheSeed(Reference):
    """The random state begins anew after the resume."""

    edits = {'        torch.set_rng_state(kept["random"])\n': ""}


@mutant(of="OBS-09", case="resumed", says="step 1: 11 modules are in evaluation mode, such as (root), and in training")
class EvaluatesBehindTheResume(Reference):
    """Loads under evaluation and continues so, without dropout."""

    edits = {"        done = 1\n": "        done = 1\n        model.eval()\n"}


@mutant(of="OBS-11", case="recomputed", says="and the random states differ")
class DrawsAgain(Reference):
    """The second forward pass draws other units to drop."""

    edits = {"use_reentrant=False": "use_reentrant=False, preserve_rng_state=False"}


@mutant(of="OBS-11", case="recomputed", says="step 1: the output of up is bfloat16, and float32 in the plain run")
class RecomputesInAnotherPrecision(Reference):
    """Autocast holds only in the branch that is recomputed."""

    edits = {"use_reentrant=False)": "use_reentrant=False, context_fn=lambda: [torch.autocast('cpu')] * 2)"}


@mutant(of="OBS-11", case="recomputed", says="step 1, output of module: moe.router.gate: differs by")
class AddsTheBranchTwice(Reference):
    """The branch that is recomputed is added twice."""

    edits = {"use_reentrant=False)": "use_reentrant=False) * 2"}
