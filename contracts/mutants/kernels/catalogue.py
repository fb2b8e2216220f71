"""Stacks whose kernel guards open too far or never, and whose evidence proves nothing."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.capacity import KernelChoice, KernelRequest, KernelRule, Promotion, Proof
from contracts.stacks.reference.stack import Reference


@mutant(of="KRN-02", case="a-number-above-all", says="is fast and runs on 'sm_990'")
class OpensUpwards(Reference):
    """`capability >= 90`: every later card takes the fast path."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        number = (request.device or "").removeprefix("sm_")
        known = {device for rule in self.kernels() for device in rule.devices}
        later = number.isdigit() and int(number) >= 90 and request.device not in known
        return super().kernel(replace(request, device="sm_90") if later else request)


@mutant(of="KRN-02", case="90-and-a-digit", says="is fast and runs on 'sm_900'")
class LooksForTheNumberInTheText(Reference):
    """`"sm_90" in arch` is also true of sm_900, and of a list of architectures that a wheel was built for."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, device="sm_90") if "sm_90" in (request.device or "") else request)


@mutant(of="KRN-02", case="the-driver-says-nothing", says="is fast and runs on None")
class TakesTheUsualCard(Reference):
    """Assumes the usual card when no driver answers."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, device=request.device or "sm_90"))


@mutant(of="KRN-02a", case="fp4-on-gb10", says="nvfp4 runs on sm_121")
class CallsGb10Blackwell(Reference):
    """Guards by generation: GB10 is Blackwell, so it gets what a B200 gets."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, device="sm_100") if request.device == "sm_121" else request)


@mutant(of="KRN-02a", case="fp8-on-a100", says="fp8 runs on sm_80")
class AsksForTensorCores(Reference):
    """Allows FP8 wherever there are tensor cores: the matmul is emulated, or raises in the first step."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        fp8 = request.variant == "fp8" and request.device == "sm_80"
        return super().kernel(replace(request, device="sm_90") if fp8 else request)


@mutant(of="KRN-02b", case="every-rule", says="though its rule names")
class ClosesEverywhere(Reference):
    """Over-correction: after one bad card no fast kernel is chosen on any card."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, device=None))


@mutant(of="KRN-02b", case="every-rule", says="runs on sm_100, but its rule names")
class TakesANeighbourForAHopper(Reference):
    """The catalogue names Hopper, but the code requires at least Hopper."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, device="sm_90") if request.device == "sm_100" else request)


@mutant(of="KRN-02c", case="packed-documents", says="fa4 needs no_doc_ids, but takes a workload without it")
class DropsDocIds(Reference):
    """The dispatcher does not pass document ids on, so its guard never sees them."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, doc_ids=False))


@mutant(of="KRN-02c", case="not-causal", says="fa4 needs causal, but takes a workload without it")
class AssumesCausal(Reference):
    """Assumes that language models are causal, but the encoder of the eval set is not."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, causal=True))


@mutant(of="KRN-02c", case="sliding-window", says="no reason is given")
class FallsBackInSilence(Reference):
    """Another kernel runs, and the receipt names the requested one."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return replace(super().kernel(request), fallback_reason=None)


@mutant(of="KRN-02d", case="falls-back", says="no reason is given", bugs=("INS-03",))
class SwallowsTheImportError(Reference):
    """`try: import … except ImportError: pass`: the slow path runs without a reason."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        choice = super().kernel(request)
        missing = "not installed" in (choice.fallback_reason or "")
        return replace(choice, fallback_reason=None) if missing else choice


@mutant(of="KRN-02d", case="required", says="is required without", bugs=("INS-03",))
class TakesRequiredForPreferred(Reference):
    """A missing required kernel falls back like a preferred one, with a line in a log."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return super().kernel(replace(request, required=False))


@mutant(of="KRN-02d", case="falls-back", says="is not installed")
class LooksAtTheDeviceAlone(Reference):
    """Chooses a kernel because the card supports it; its import fails in the first step."""

    def kernel(self, request: KernelRequest) -> KernelChoice:
        packages = {rule.package for rule in self.kernels() if rule.package is not None}
        return super().kernel(replace(request, installed=request.installed | packages))


def _with_fallback(rules: tuple[KernelRule, ...], variant: str, fallback: str | None) -> tuple[KernelRule, ...]:
    return tuple(replace(rule, fallback=fallback) if rule.variant == variant else rule for rule in rules)


@mutant(of="KRN-02e", case="every-rule", says="ends in fa2, which is guarded")
class StopsAtAGuardedKernel(Reference):
    """The last fallback is itself a fast kernel: it works on every card in the rack and raises on the next."""

    def kernels(self) -> tuple[KernelRule, ...]:
        return _with_fallback(super().kernels(), "fa2", None)


@mutant(of="KRN-02e", case="every-rule", says="falls back to fa4 again")
class GoesRoundInCircles(Reference):
    """Two kernels fall back to each other, so the choice never ends."""

    def kernels(self) -> tuple[KernelRule, ...]:
        return _with_fallback(_with_fallback(super().kernels(), "fa4", "fa3"), "fa3", "fa4")


def _believed(proofs: tuple[Proof, ...], **belief: object) -> tuple[Proof, ...]:
    """Proofs with some fields assumed instead of measured."""
    return tuple(replace(proof, **belief) for proof in proofs)  # type: ignore[arg-type]  # fields by name


@mutant(of="KRN-03", case="planned", says="fa4 is promoted on sm_90 by planned fa4")
class CountsPlans(Reference):
    """Counts a planned kernel as one that ran."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return super().promotion(variant, device, _believed(proofs, kind="executed"))


@mutant(of="KRN-03", case="all-three-together", says="fa4 is promoted on sm_90")
class AddsEvidenceUp(Reference):
    """Adds up planned, observed and validated: three weak proofs make a strong one."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        strong = len({proof.kind for proof in proofs}) >= 3
        return super().promotion(variant, device, _believed(proofs, kind="executed") if strong else proofs)


@mutant(of="KRN-03", case="in-the-shadow", says="fa4 is promoted on sm_90 by executed fa4 on sm_90 (shadow)")
class CountsTheShadow(Reference):
    """Counts a kernel that ran beside the one whose result was used; no step was ever taken with its own result."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return super().promotion(variant, device, _believed(proofs, runtime_mode="train"))


@mutant(of="KRN-03", case="fell-back-silently", says="fa4 is promoted on sm_90 by executed fa2")
class ReadsTheRequest(Reference):
    """Takes the requested kernel for the one that ran."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        asked = tuple(replace(proof, actual=proof.requested, fallback_reason=None) for proof in proofs)
        return super().promotion(variant, device, asked)


@mutant(of="KRN-03", case="another-device", says="fa4 is promoted on sm_90 by executed fa4 on sm_100")
class ProvesForEveryCard(Reference):
    """A proof on one card promotes the kernel on all of them."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return super().promotion(variant, device, _believed(proofs, device=device))


@mutant(of="KRN-03a", case="difference-not-measured", says="promotion is True, expected False")
class TakesNothingForZero(Reference):
    """Counts a difference that was not measured as zero."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        filled = tuple(replace(proof, max_abs_diff=proof.max_abs_diff or 0.0) for proof in proofs)
        return super().promotion(variant, device, filled)


@mutant(of="KRN-03a", case="not-finite", says="promotion is True, expected False")
class LooksAtSpeedAlone(Reference):
    """Compares only tokens per second, and NaN is fast."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return super().promotion(variant, device, _believed(proofs, finite=True, max_abs_diff=0.0, memory_ratio=1.0))


@mutant(of="KRN-03a", case="nine-per-cent-slower", says="promotion is False, expected True")
class AsksForAWinEverywhere(Reference):
    """Over-correction: requires a kernel to be faster, smaller and exact at once, and none ever is."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        answer = super().promotion(variant, device, proofs)
        slower = any((proof.throughput_ratio or 0.0) < 1.0 for proof in proofs)
        return replace(answer, allowed=False, reason="not faster") if slower else answer


@mutant(of="KRN-03b", case="one-passes-one-stops", says="promotion is True, expected False")
class TakesTheBestRun(Reference):
    """One passing run is enough, however many failed."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        answers = [super(TakesTheBestRun, self).promotion(variant, device, (proof,)) for proof in proofs]
        return next((answer for answer in answers if answer.allowed), Promotion(allowed=False, reason="none passes"))


@mutant(of="KRN-03b", case="passes-beside-another-device", says="promotion is False, expected True")
class FearsEveryFailure(Reference):
    """Over-correction: a failure on another card stops the kernel on this one."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return super().promotion(variant, device, _believed(proofs, device=device))
