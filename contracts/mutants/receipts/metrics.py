"""Stacks that print figures nobody may believe."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.receipt import Figures, LaunchedRun, Receipt, Weight, WeightCount, Work
from contracts.stacks.reference.stack import Reference


@mutant(of="RCPT-04", case="nan-gradients-finite-loss", says="65536.0 tokens/s stand on steps", bugs=("PRV-29",))
class LooksAtTheLoss(Reference):
    """The loss is finite, so the run trained. Its gradient norm is NaN in every step, and no weight moves."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=tuple(replace(step, grad_norm=1.0) for step in facts.steps)))


@mutant(of="RCPT-04", case="no-step", says="268.0 tokens/s stand on steps", bugs=("PRV-08",))
class CitesTheLabel(Reference):
    """A log that crashed in initialisation was labelled with the figure of another run."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        return receipt if facts.steps else replace(receipt, tokens_per_second=268.0)


@mutant(of="RCPT-04", case="nan-gradient-after-the-window", says="tokens/s stand on steps", bugs=("PRV-29",))
class StopsLookingAfterTheWindow(Reference):
    """The witness ends with the window: the run that died one step later has a record."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=facts.steps[: facts.warmup + facts.bounded]))


@mutant(of="RCPT-04", case="gradients-not-measured", says="tokens/s stand on steps", bugs=("PRV-29",))
class TakesSilenceForHealth(Reference):
    """Nothing was NaN, because nothing was measured."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        steps = tuple(replace(step, grad_norm=step.grad_norm or 0.0) for step in facts.steps)
        return super().receipt(replace(facts, steps=steps))


@mutant(of="RCPT-04", case="skipped-steps", says="tokens/s stand on steps")
class CountsSkippedSteps(Reference):
    """A step that updates nothing is the fastest of all."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=tuple(replace(step, skipped=False) for step in facts.steps)))


@mutant(of="RCPT-04", case="nan-loss", says="and nothing says why")
class WithholdsInSilence(Reference):
    """The figure is gone and so is the reason: somebody runs the job again."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return replace(super().receipt(facts), withheld=None)


@mutant(of="RCPT-04b", case="scaler-searching", says="tokens/s is None, expected 65536.0")
class CountsTheScalersSearch(Reference):
    """The over-correction: one overflow while the loss scale is searched, and no fp16 run has a figure."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, steps=tuple(replace(step, skipped=False) for step in facts.steps)))


@mutant(of="RCPT-04a", case="no-witness", says="was accepted, expected a refusal", bugs=("PRV-08",))
class WritesWhatItIsGiven(Reference):
    """A writer writes: whether anything stands behind the figure is the reader's business."""

    def write_receipt(self, receipt: Receipt) -> str:
        figure = receipt.tokens_per_second
        body = json.loads(super().write_receipt(replace(receipt, tokens_per_second=None)))
        return json.dumps({**body, "tokens_per_second": figure})


@mutant(of="RCPT-04a", case="gradients-not-finite", says="was accepted, expected a refusal", bugs=("PRV-29",))
class ReadsWhatItIsGiven(Reference):
    """Refuses to write such a receipt and reads one without a word: the one that was edited, or written elsewhere."""

    def read_receipt(self, text: str) -> Receipt:
        figure = json.loads(text)["tokens_per_second"]
        receipt = super().read_receipt(json.dumps({**json.loads(text), "tokens_per_second": None}))
        return replace(receipt, tokens_per_second=figure)


def _scaled(figures: Figures, factor: float) -> Figures:
    return replace(figures, mfu=figures.mfu * factor)


@mutant(of="RCPT-05", case="h200-bf16", says="MFU is 0.059", bugs=("PRV-13",))
class DividesByTheSparsePeak(Reference):
    """Copies the peak off the data sheet, which prints it with sparsity: every MFU is half."""

    def figures(self, work: Work) -> Figures:
        return _scaled(super().figures(work), 0.5)


@mutant(of="RCPT-05", case="h200-full-name", says="MFU is 0.375", bugs=("PRV-13",))
class FallsBackToA100(Reference):
    """A table with the peak of A100 for every name it does not know exactly."""

    def figures(self, work: Work) -> Figures:
        exact = work.device in ("NVIDIA H200", "NVIDIA A100")
        return super().figures(work if exact else replace(work, device="NVIDIA A100"))


@mutant(of="RCPT-05", case="h200-fp8", says="MFU is 0.118")
class KnowsOneDtype(Reference):
    """Divides FP8 work by the bf16 peak: twice the utilisation for the same speed."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, dtype="bf16"))


@mutant(of="RCPT-05", case="h200-bf16", says="FLOPs a token are 5290089984", bugs=("PRV-13",))
class CountsOneStage(Reference):
    """Counts parameters after the pipeline was split: four stages, and the FLOPs of one."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, parameters=work.parameters // 4))


@mutant(of="RCPT-05", case="sixteen-gpus", says="tokens/s is 4096.0, expected 65536.0")
class GivesARate(Reference):
    """Prints tokens/s of one GPU under the name of the world's."""

    def figures(self, work: Work) -> Figures:
        figures = super().figures(work)
        return replace(figures, tokens_per_second=figures.tokens_per_second / work.world)


@mutant(of="RCPT-05", case="16k-tokens", says="FLOPs a token are 12000000000")
class LeavesAttentionOut(Reference):
    """6 N and no more: at 16 384 tokens two fifths of the work are missing."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, attention_layers=0))


@mutant(of="RCPT-05a", case="unknown-device", says="was accepted, expected a refusal", bugs=("PRV-13",))
class GuessesAPeak(Reference):
    """An unknown card gets the peak of the one on the developer's desk."""

    def figures(self, work: Work) -> Figures:
        known = work.device.startswith("NVIDIA")
        return super().figures(work if known else replace(work, device="NVIDIA H100"))


@mutant(of="RCPT-05a", case="no-time", says="was accepted, expected a refusal")
class DividesByAlmostNothing(Reference):
    """Adds a small number against a division by zero: a window that never ran has a record rate."""

    def figures(self, work: Work) -> Figures:
        return super().figures(replace(work, seconds=max(work.seconds, 1e-9)))


@mutant(of="RCPT-05b", case="tied", says="the counts are (287552")
class CountsTiedTensorsTwice(Reference):
    """Sums over names: embedding and output share their storage and count twice."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        apart = tuple(replace(weight, same_as=None) for weight in weights)
        return super().count_weights(apart, experts, top_k)


@mutant(of="RCPT-05b", case="untied", says="the counts are (287552, 287552")
class CallsEveryExpertActive(Reference):
    """A token meets two experts of twelve and pays for all: the MFU of a sparse model passes 1."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        return super().count_weights(weights, experts, experts)


@mutant(of="RCPT-05b", case="an-expert-a-tensor", says="the counts are (137728, 82432, 82432)")
class MultipliesTheTable(Reference):
    """Counts the lookup of an embedding as a product with its table."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        count = super().count_weights(weights, experts, top_k)
        return replace(count, matmul=count.active)


@mutant(of="RCPT-05b", case="tied", says="100672, 36672)")
class NeverMultipliesTheTable(Reference):
    """The over-correction: leaves a tied table out, though the output projection multiplies by it."""

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        count = super().count_weights(weights, experts, top_k)
        tables = sum(math.prod(weight.shape) for weight in weights if weight.lookup)
        return replace(count, matmul=count.active - tables)
