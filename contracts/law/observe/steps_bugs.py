"""Scripts that clip too early, miscount microbatches, or do not come back from an evaluation."""

from contracts.law._bugs.broken import with_attributes

CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


with_attributes(
    "ClipsBeforeTheReduction",
    "Clips each rank's own gradients, and averages them afterwards.",
    "OBS-04[one-run]: step 1: rank 0 was given the gradient norm",
    edits={
        "if micro == 0 else": "if True else",
        CLIP: f"{CLIP}\n        for each in model.parameters():\n            dist.all_reduce(each.grad.div_(world))",
    },
)

with_attributes(
    "ClipsOnOneRank",
    "The first rank clips, as it logs, for all.",
    "OBS-04[one-run]: step 1: rank 0 clips its gradients and rank 1 does not",
    edits={CLIP: f"        if rank == 0:\n    {CLIP}"},
)

ClipsInEveryMicrobatch = with_attributes(
    "ClipsInEveryMicrobatch",
    "The clipping stands in the loop over microbatches, as in front of it for one.",
    "OBS-04[one-run]: step 1: rank 0 scales its gradients down after microbatch 1, and others",
    edits={
        "                loss.backward()\n": f"                loss.backward()\n            {CLIP.strip()[:-4]}0.1)\n"
    },
)

ClipsByTheNormOfItsShards = with_attributes(
    "ClipsByTheNormOfItsShards",
    "FSDP, and each rank takes the norm of what it holds for that of all.",
    "OBS-04[one-run]: step 1: rank 0 was given the gradient norm",
    edits={
        "    model = DistributedDataParallel(net, broadcast_buffers=False)": (
            "    from torch.distributed.fsdp import fully_shard\n    model = fully_shard(net)"
        ),
        "model.no_sync() if micro == 0 else contextlib.nullcontext()": "contextlib.nullcontext()",
        CLIP: """        norm = nn.utils.get_total_norm([each.grad.to_local() for each in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)""",
    },
)

with_attributes(
    "ScalesAfterClipping",
    "Undoes a loss scale after the clipping instead of in front of it.",
    "OBS-04[one-run]: expected 1",
    edits={CLIP: f"{CLIP}\n        for each in model.parameters():\n            each.grad.div_(4)"},
)

with_attributes(
    "StepsAfterOneMicrobatch",
    "Counts microbatches from one.",
    "OBS-07[one-run]: has 1 backward passes, reported 2",
    edits={"for micro in range(2)": "for micro in range(1, 2)"},
)

with_attributes(
    "ReducesEveryMicrobatch",
    "`no_sync` is never entered.",
    "OBS-07[one-run]: they are reduced 2 times",
    edits={"if micro == 0 else": "if False else"},
)

with_attributes(
    "TakesAMeanOfMeans",
    "Counts only some labels, other numbers of them in each microbatch, and takes the mean of each one's mean.",
    "OBS-07[one-run]: labels of microbatch",
    edits={"rows[:, 1:].flatten())": "rows[:, 1:].masked_fill(rows[:, 1:] < 40, -100).flatten())"},
)

with_attributes(
    "ZeroesInEveryMicrobatch",
    "`zero_grad` stands in the loop over microbatches, so that only the last one counts.",
    "OBS-07[one-run]: the gradients of 2 microbatches are dropped before an optimizer",
    edits={"        for micro in range(2):": "        for micro in range(2):\n            optimizer.zero_grad()"},
)

with_attributes(
    "NeverDividesTheLoss",
    "Each microbatch has the mean of its own labels, and the step the sum of those.",
    "OBS-07[one-run]: labels of each of 2 microbatches weigh 1 together on rank 0, as if it were",
    edits={"model(rows) / 2": "model(rows)"},
)

with_attributes(
    "DividesTheMeanAgain",
    "Takes what DDP has reduced for a sum.",
    "OBS-07[one-run]: divides the mean that DDP takes over 2 ranks by 2, and its labels weigh 1",
    edits={CLIP: f"        for each in model.parameters():\n            each.grad.div_(world)\n{CLIP}"},
)

with_attributes(
    "MakesTheOptimizerAgain",
    "The schedule sets the rates of an optimizer that was made before.",
    "OBS-08[one-run]: applies the rate 0.001 to embed.weight on rank 0; the scheduler set 0.0005",
    edits={
        "    torch.manual_seed(100": "    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)\n"
        "    torch.manual_seed(100"
    },
)

with_attributes(
    "SetsTheRateBack",
    "The rate of the configuration is written into the optimizer in every step.",
    "OBS-08[one-run]: step 2: AdamW 1 applies the rate 0.001 to embed.weight on rank 0",
    edits={"        optimizer.step()": "        optimizer.param_groups[0]['lr'] = 0.001\n        optimizer.step()"},
)

with_attributes(
    "StaysInEvaluation",
    "Nobody calls `model.train()` again.",
    "OBS-13[one-run]: stay in evaluation mode on rank 0",
    edits={"model.train()": "pass"},
)

with_attributes(
    "EvaluatesBeforeItTrains",
    "The first evaluation is in front of the first step, and nobody calls `model.train()` after it.",
    "OBS-13[one-run]: before step 1, the model stays in evaluation mode on rank 0, with drop",
    edits={
        "    for step in range(done": """    model.eval()
    with torch.no_grad():
        net(torch.zeros(1, 9, dtype=torch.int64))
    for step in range(done"""
    },
)

with_attributes(
    "TrainsOneRankInEvaluation",
    "The first rank evaluates for all, and continues so.",
    "OBS-13[one-run]: 11 modules are in evaluation mode on rank 0 and not on rank 1, such as",
    edits={"        observe.step(micro": "        model.train(rank > 0 or not step)\n        observe.step(micro"},
)

with_attributes(
    "EvaluatesAveragedWeights",
    "Exchanges the weights for their averages and does not put them back.",
    "OBS-13[one-run]: the evaluation after step 1 changes the weight embed.weight on rank 0",
    edits={"        model.eval()\n": "        model.eval()\n        net.embed.weight.data.mul_(0.5)\n"},
)

with_attributes(
    "MirrorsItsWeights",
    "Exchanges the weights for others of the same norm and does not put them back.",
    "OBS-13[one-run]: the evaluation after step 1 changes the weight embed.weight on rank 0",
    edits={"        model.eval()\n": "        model.eval()\n        net.embed.weight.data.neg_()\n"},
)

with_attributes(
    "AveragesOverTheValidationSet",
    "A running mean of what reaches the experts, which counts in evaluations too.",
    "OBS-13[one-run]: the evaluation after step 1 changes 1 of 2 buffers on rank 0, such as moe.mean",
    edits={
        "        scores, chosen, _ =": "        self.mean.lerp_(x.detach().mean((0, 1)), 0.1)\n"
        "        scores, chosen, _ =",
        '        self.register_buffer("expert_bias"': '        self.register_buffer("mean", torch.zeros(16))\n'
        '        self.register_buffer("expert_bias"',
    },
)

with_attributes(
    "DropsUnitsInBothModes",
    "A function that is given no mode drops units in training and in evaluation.",
    "OBS-13[one-run]: the evaluation after step 1 applies dropout on rank 0",
    edits={"return self.drop(": "return F.dropout("},
)
