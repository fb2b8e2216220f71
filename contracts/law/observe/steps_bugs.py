"""Scripts that clip too early, miscount microbatches, or do not come back from an evaluation."""

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference

CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@mutant(of="OBS-04", case="one-run", says="step 1: rank 0 was given the gradient norm")
class ClipsBeforeTheReduction(Reference):
    """Clips each rank's own gradients, and averages them afterwards."""

    edits = {
        "if micro == 0 else": "if True else",
        CLIP: f"{CLIP}\n        for each in model.parameters():\n            dist.all_reduce(each.grad.div_(world))",
    }


@mutant(of="OBS-04", case="one-run", says="step 1: rank 0 clips its gradients and rank 1 does not")
class ClipsOnOneRank(Reference):
    """The first rank clips, as it logs, for all."""

    edits = {CLIP: f"        if rank == 0:\n    {CLIP}"}


@mutant(of="OBS-04", case="one-run", says="step 1: rank 0 scales its gradients down after microbatch 1, and others")
class ClipsInEveryMicrobatch(Reference):
    """The clipping stands in the loop over microbatches, as in front of it for one."""

    edits = {
        "                loss.backward()\n": f"                loss.backward()\n            {CLIP.strip()[:-4]}0.1)\n"
    }


@mutant(of="OBS-04", case="one-run", says="step 1: rank 0 was given the gradient norm")
class ClipsByTheNormOfItsShards(Reference):
    """FSDP, and each rank takes the norm of what it holds for that of all."""

    edits = {
        "    model = DistributedDataParallel(net, broadcast_buffers=False)":
            "    from torch.distributed.fsdp import fully_shard\n    model = fully_shard(net)",
        "model.no_sync() if micro == 0 else contextlib.nullcontext()": "contextlib.nullcontext()",
        CLIP: """        norm = nn.utils.get_total_norm([each.grad.to_local() for each in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)""",
    }  # fmt: skip


@mutant(of="OBS-04", case="one-run", says="expected 1")
class ScalesAfterClipping(Reference):
    """Undoes a loss scale after the clipping instead of in front of it."""

    edits = {CLIP: f"{CLIP}\n        for each in model.parameters():\n            each.grad.div_(4)"}


@mutant(of="OBS-07", case="one-run", says="has 1 backward passes, reported 2")
class StepsAfterOneMicrobatch(Reference):
    """Counts microbatches from one."""

    edits = {"for micro in range(2)": "for micro in range(1, 2)"}


@mutant(of="OBS-07", case="one-run", says="they are reduced 2 times")
class ReducesEveryMicrobatch(Reference):
    """`no_sync` is never entered."""

    edits = {"if micro == 0 else": "if False else"}


@mutant(of="OBS-07", case="one-run", says="labels of microbatch")
class TakesAMeanOfMeans(Reference):
    """Counts only some labels, other numbers of them in each microbatch, and takes the mean of each one's mean."""

    edits = {"rows[:, 1:].flatten())": "rows[:, 1:].masked_fill(rows[:, 1:] < 40, -100).flatten())"}


@mutant(of="OBS-07", case="one-run", says="the gradients of 2 microbatches are dropped before an optimizer")
class ZeroesInEveryMicrobatch(Reference):
    """`zero_grad` stands in the loop over microbatches, so that only the last one counts."""

    edits = {"        for micro in range(2):": "        for micro in range(2):\n            optimizer.zero_grad()"}


@mutant(of="OBS-07", case="one-run", says="labels of each of 2 microbatches weigh 1 together on rank 0, as if it were")
class NeverDividesTheLoss(Reference):
    """Each microbatch has the mean of its own labels, and the step the sum of those."""

    edits = {"model(rows) / 2": "model(rows)"}


@mutant(of="OBS-07", case="one-run", says="divides the mean that DDP takes over 2 ranks by 2, and its labels weigh 1")
class DividesTheMeanAgain(Reference):
    """Takes what DDP has reduced for a sum."""

    edits = {CLIP: f"        for each in model.parameters():\n            each.grad.div_(world)\n{CLIP}"}


@mutant(of="OBS-08", case="one-run", says="applies the rate 0.001 to embed.weight on rank 0; the scheduler set 0.0005")
class MakesTheOptimizerAgain(Reference):
    """The schedule sets the rates of an optimizer that was made before."""

    edits = {"    torch.manual_seed(100": "    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)\n"
             "    torch.manual_seed(100"}  # fmt: skip


@mutant(of="OBS-08", case="one-run", says="step 2: AdamW 1 applies the rate 0.001 to embed.weight on rank 0")
class SetsTheRateBack(Reference):
    """The rate of the configuration is written into the optimizer in every step."""

    edits = {"        optimizer.step()": "        optimizer.param_groups[0]['lr'] = 0.001\n        optimizer.step()"}


@mutant(of="OBS-13", case="one-run", says="stay in evaluation mode on rank 0")
class StaysInEvaluation(Reference):
    """Nobody calls `model.train()` again."""

    edits = {"model.train()": "pass"}


@mutant(of="OBS-13", case="one-run", says="before step 1, the model stays in evaluation mode on rank 0, with drop")
class EvaluatesBeforeItTrains(Reference):
    """The first evaluation is in front of the first step, and nobody calls `model.train()` after it."""

    edits = {
        "    for step in range(done": """    model.eval()
    with torch.no_grad():
        net(torch.zeros(1, 9, dtype=torch.int64))
    for step in range(done"""
    }


@mutant(of="OBS-13", case="one-run", says="11 modules are in evaluation mode on rank 0 and not on rank 1, such as")
class TrainsOneRankInEvaluation(Reference):
    """The first rank evaluates for all, and continues so."""

    edits = {"        observe.step(micro": "        model.train(rank > 0 or not step)\n        observe.step(micro"}


@mutant(of="OBS-13", case="one-run", says="the evaluation after step 1 changes the weight embed.weight on rank 0")
class EvaluatesAveragedWeights(Reference):
    """Exchanges the weights for their averages and does not put them back."""

    edits = {"        model.eval()\n": "        model.eval()\n        net.embed.weight.data.mul_(0.5)\n"}


@mutant(of="OBS-13", case="one-run", says="the evaluation after step 1 changes the weight embed.weight on rank 0")
class MirrorsItsWeights(Reference):
    """Exchanges the weights for others of the same norm and does not put them back."""

    edits = {"        model.eval()\n": "        model.eval()\n        net.embed.weight.data.neg_()\n"}


@mutant(
    of="OBS-13", case="one-run",
    says="the evaluation after step 1 changes 1 of 2 buffers on rank 0, such as moe.mean",
)  # fmt: skip
class AveragesOverTheValidationSet(Reference):
    """A running mean of what reaches the experts, which counts in evaluations too."""

    edits = {
        "        scores, chosen, _ =": "        self.mean.lerp_(x.detach().mean((0, 1)), 0.1)\n"
                                       "        scores, chosen, _ =",
        '        self.register_buffer("expert_bias"': '        self.register_buffer("mean", torch.zeros(16))\n'
                                                      '        self.register_buffer("expert_bias"',
    }  # fmt: skip


@mutant(of="OBS-13", case="one-run", says="the evaluation after step 1 applies dropout on rank 0")
class DropsUnitsInBothModes(Reference):
    """A function that is given no mode drops units in training and in evaluation."""

    edits = {"return self.drop(": "return F.dropout("}
