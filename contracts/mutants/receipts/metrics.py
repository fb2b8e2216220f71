"""Stacks that print wrong or unproved figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.receipt import Figures, LaunchedRun, Receipt, Weight, WeightCount, Work
from contracts.stacks.reference.stack import Reference


@mutant(
    of="RCPT-04", case="nan-gradients-finite-loss", says="65536.0 tokens/s are reported for steps", bugs=("PRV-29",)
)
class LooksAtTheLoss(Reference):
    """Checks only that the loss is finite, while the gradient norm is NaN in every step and no weight moves."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=tuple(replace(step, grad_norm=1.0) for step in facts.steps)))


@mutant(of="RCPT-04", case="no-step", says="268.0 tokens/s are reported for steps", bugs=("PRV-08",))
class CitesTheLabel(Reference):
    """A log that crashed in initialisation is labelled with the figure of another run."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        return receipt if facts.steps else replace(receipt, tokens_per_second=268.0)


@mutant(of="RCPT-04", case="nan-gradient-after-the-window", says="tokens/s are reported for steps", bugs=("PRV-29",))
class StopsLookingAfterTheWindow(Reference):
    """The witness covers only the window, so a run that dies one step later has a record figure."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=facts.steps[: facts.warmup + facts.bounded]))


@mutant(of="RCPT-04", case="gradients-not-measured", says="tokens/s are reported for steps", bugs=("PRV-29",))
class TakesSilenceForHealth(Reference):
    """Finds no NaN because nothing was measured."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        steps = tuple(replace(step, grad_norm=step.grad_norm or 0.0) for step in facts.steps)
        return super().receipt(replace(facts, steps=steps))


@mutant(of="RCPT-04", case="skipped-steps", says="tokens/s are reported for steps")
class CountsSkippedSteps(Reference):
    """Counts skipped steps: a step that updates nothing is the fastest of all."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=tuple(replace(step, skipped=False) for step in facts.steps)))


@mutant(of="RCPT-04", case="no-time", says="tokens/s are reported for steps")
class DividesByALittle(Reference):
    """A window that took no time is divided by a nanosecond, so that nothing is divided by 0."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        steps = tuple(replace(step, seconds=step.seconds or 1e-9) for step in facts.steps)
        return super().receipt(replace(facts, steps=steps))


@mutant(of="RCPT-04", case="nan-loss", says="is withheld without a reason")
class WithholdsInSilence(Reference):
    """Withholds the figure without a reason, so somebody runs the job again."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return replace(super().receipt(facts), withheld=None)


@mutant(of="RCPT-04b", case="scaler-searching", says="tokens/s is None, expected 65536.0")
class CountsTheScalersSearch(Reference):
    """Over-correction: one overflow during the loss scaler's search withholds the figure, so no fp16 run has one."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=tuple(replace(step, skipped=False) for step in facts.steps)))


@mutant(of="RCPT-04a", case="no-witness", says="was accepted, expected a refusal", bugs=("PRV-08",))
class WritesWhatItIsGiven(Reference):
    """The writer checks nothing and leaves the witness to the reader."""

    def write_receipt(self, receipt: Receipt) -> str:
        figure = receipt.tokens_per_second
        body = json.loads(super().write_receipt(replace(receipt, tokens_per_second=None)))
        return json.dumps({**body, "tokens_per_second": figure})


@mutant(of="RCPT-04a", case="gradients-not-finite", says="was accepted, expected a refusal", bugs=("PRV-29",))
class ReadsWhatItIsGiven(Reference):
    """Refuses to write such a receipt but reads one that was edited, or written elsewhere."""

    def read_receipt(self, text: str) -> Receipt:
        figure = json.loads(text)["tokens_per_second"]
        receipt = super().read_receipt(json.dumps({**json.loads(text), "tokens_per_second": None}))
        return replace(receipt, tokens_per_second=figure)


def _scaled(figures: Figures, factor: float) -> Figures:
    return replace(figures, mfu=figures.mfu * factor)


@mutant(of="RCPT-05", case="h200-bf16", says="MFU is 0.059", bugs=("PRV-13",))
class DividesByTheSparsePeak(Reference):
    """Copies the peak from the data sheet, which states it with sparsity, so every MFU is half."""

    def figures(self, work: Work) -> Figures:
        return _scaled(super().figures(work), 0.5)


@mutant(of="RCPT-05", case="h200-full-name", says="MFU is 0.375", bugs=("PRV-13",))
class FallsBackToA100(Reference):
    """Uses the A100's peak for every device name that it does not know exactly."""

    def figures(self, work: Work) -> Figures:
        exact = work.device in ("NVIDIA H200", "NVIDIA A100")
        return super().figures(work if exact else replace(work, device="NVIDIA A100"))


@mutant(of="RCPT-05", case="h200-fp8", says="MFU is 0.118")
class KnowsOneDtype(Reference):
    """Divides FP8 work by the bf16 peak, which doubles the utilisation at equal speed."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, dtype="bf16"))


@mutant(of="RCPT-05", case="h200-bf16", says="FLOPs per token are 5290089984", bugs=("PRV-13",))
class CountsOneStage(Reference):
    """Counts parameters after the pipeline split: four stages, and the FLOPs of one."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, parameters=work.parameters // 4))


@mutant(of="RCPT-05", case="sixteen-gpus", says="tokens/s is 4096.0, expected 65536.0")
class GivesARate(Reference):
    """Prints the tokens/s of one GPU as those of the world."""

    def figures(self, work: Work) -> Figures:
        figures = super().figures(work)
        return replace(figures, tokens_per_second=figures.tokens_per_second / work.world)


@mutant(of="RCPT-05", case="16k-tokens", says="FLOPs per token are 12000000000")
class LeavesAttentionOut(Reference):
    """Counts only 6 N: at 16 384 tokens two fifths of the work are missing."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, attention_layers=0))


@mutant(of="RCPT-05a", case="unknown-device", says="was accepted, expected a refusal", bugs=("PRV-13",))
class GuessesAPeak(Reference):
    """Gives an unknown card the peak of the developer's own card."""

    def figures(self, work: Work) -> Figures:
        known = work.device.startswith("NVIDIA")
        return super().figures(work if known else replace(work, device="NVIDIA H100"))


@mutant(of="RCPT-05a", case="no-time", says="was accepted, expected a refusal")
class DividesByAlmostNothing(Reference):
    """Adds a small number to avoid a division by zero, so a window that never ran has a record rate."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, seconds=max(work.seconds, 1e-9)))


@mutant(of="RCPT-05b", case="tied", says="the counts are (287552")
class CountsTiedTensorsTwice(Reference):
    """Sums over names, so an embedding and an output projection that share storage count twice."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        apart = tuple(replace(weight, same_as=None) for weight in weights)
        return super().count_weights(apart, experts, top_k)


@mutant(of="RCPT-05b", case="untied", says="the counts are (287552, 287552")
class CallsEveryExpertActive(Reference):
    """Counts all twelve experts as active though a token uses two, so the MFU of a sparse model exceeds 1."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        return super().count_weights(weights, experts, experts)


@mutant(of="RCPT-05b", case="an-expert-a-tensor", says="the counts are (137728, 82432, 82432)")
class MultipliesTheTable(Reference):
    """Counts an embedding lookup as a matrix product with its table."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        count = super().count_weights(weights, experts, top_k)
        return replace(count, matmul=count.active)


@mutant(of="RCPT-05b", case="tied", says="100672, 36672)")
class NeverMultipliesTheTable(Reference):
    """Over-correction: omits a tied table, though the output projection multiplies by it."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        count = super().count_weights(weights, experts, top_k)
        tables = sum(math.prod(weight.shape) for weight in weights if weight.lookup)
        return replace(count, matmul=count.active - tables)
