"""Scripts that do something else on several ranks, after a resume, or where they recompute."""

from contracts.law._bugs.broken import with_attributes

CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


with_attributes(
    "DividesTwice",
    "Divides the loss by the number of ranks, and DDP takes the mean.",
    "OBS-01[spread]: step 1, loss: loss: ",
    edits={"model(rows) / 2": "model(rows) / 2 / world"},
)

with_attributes(
    "AddsUpOneGradient",
    "One parameter has the sum of the ranks' gradients, and the others their mean.",
    "OBS-01[spread]: step 1, gradient: up.weight: differs by",
    edits={CLIP: f"{CLIP}\n        net.up.weight.grad.mul_(world)"},
)

with_attributes(
    "HalvesInAWrapper",
    "On several ranks a wrapper gives each parameter another name, and each gradient is halved, which Adam hides.",
    "OBS-01[spread]: step 1, gradient: moe.experts.weight: differs by",
    edits={
        "DistributedDataParallel(net,": "DistributedDataParallel(nn.Sequential(net) if world > 1 else net,",
        CLIP: f"{CLIP}\n        [each.grad.div_(world) for each in net.parameters()]",
    },
)

with_attributes(
    "ForgetsTheMoments",
    "The optimizer begins anew after the resume.",
    "OBS-09[resumed]: step 1: the moment exp_avg of embed.weight differs from the whole run's",
    edits={'        optimizer.load_state_dict(kept["optimizer"])\n': ""},
)

with_attributes(
    "ReadsFromTheBeginning",
    "The data begin anew after the resume.",
    "OBS-09[resumed]: the inputs differ",
    edits={'        data.set_state(kept["data"])\n': ""},
)

with_attributes(
    "DrawsFromTheSeed",
    "The random state begins anew after the resume.",
    "OBS-09[resumed]: step 1: the random state before microbatch 1 differs from the whole run's",
    edits={'        torch.set_rng_state(kept["random"])\n': ""},
)

with_attributes(
    "EvaluatesBehindTheResume",
    "Loads under evaluation and continues so, without dropout.",
    "OBS-09[resumed]: step 1: 11 modules are in evaluation mode, such as (root), and in training",
    edits={"        done = 1\n": "        done = 1\n        model.eval()\n"},
)

with_attributes(
    "DrawsAgain",
    "The second forward pass draws other units to drop.",
    "OBS-11[recomputed]: and the random states differ",
    edits={"use_reentrant=False": "use_reentrant=False, preserve_rng_state=False"},
)

with_attributes(
    "RecomputesInAnotherPrecision",
    "Autocast holds only in the branch that is recomputed.",
    "OBS-11[recomputed]: step 1: the output of up is bfloat16, and float32 in the plain run",
    edits={"use_reentrant=False)": "use_reentrant=False, context_fn=lambda: [torch.autocast('cpu')] * 2)"},
)

with_attributes(
    "AddsTheBranchTwice",
    "The branch that is recomputed is added twice.",
    "OBS-11[recomputed]: step 1, output of module: moe.router.gate: differs by",
    edits={"use_reentrant=False)": "use_reentrant=False) * 2"},
)
