"""Stacks whose kernel guards open too far or never, and whose evidence proves nothing."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken
from contracts.spec.capacity import KernelRule, Promotion, Proof
from contracts.stacks.reference.stack import Reference


@broken(Reference, "kernel", "KRN-02[a-number-above-all]: is fast and runs on 'sm_990'")
def opens_upwards(kernel, self, request):
    """`capability >= 90`: every later card takes the fast path."""
    number = (request.device or "").removeprefix("sm_")
    known = {device for rule in self.kernels() for device in rule.devices}
    later = number.isdigit() and int(number) >= 90 and request.device not in known
    return kernel(self, replace(request, device="sm_90") if later else request)


@broken(Reference, "kernel", "KRN-02[90-and-a-digit]: is fast and runs on 'sm_900'")
def looks_for_the_number_in_the_text(kernel, self, request):
    """`"sm_90" in arch` is also true of sm_900, and of a list of architectures that a wheel was built for."""
    return kernel(self, replace(request, device="sm_90") if "sm_90" in (request.device or "") else request)


@broken(Reference, "kernel", "KRN-02[the-driver-says-nothing]: is fast and runs on None")
def takes_the_usual_card(kernel, self, request):
    """Assumes the usual card when no driver answers."""
    return kernel(self, replace(request, device=request.device or "sm_90"))


@broken(Reference, "kernel", "KRN-02a[fp4-on-gb10]: nvfp4 runs on sm_121")
def calls_gb10_blackwell(kernel, self, request):
    """Guards by generation: GB10 is Blackwell, so it gets what a B200 gets."""
    return kernel(self, replace(request, device="sm_100") if request.device == "sm_121" else request)


@broken(Reference, "kernel", "KRN-02a[fp8-on-a100]: fp8 runs on sm_80")
def asks_for_tensor_cores(kernel, self, request):
    """Allows FP8 wherever there are tensor cores: the matmul is emulated, or raises in the first step."""
    fp8 = request.variant == "fp8" and request.device == "sm_80"
    return kernel(self, replace(request, device="sm_90") if fp8 else request)


@broken(Reference, "kernel", "KRN-02b[every-rule]: though its rule names")
def closes_everywhere(kernel, self, request):
    """Over-correction: after one bad card no fast kernel is chosen on any card."""
    return kernel(self, replace(request, device=None))


@broken(Reference, "kernel", "KRN-02b[every-rule]: runs on sm_100, but its rule names")
def takes_a_neighbour_for_a_hopper(kernel, self, request):
    """The catalogue names Hopper, but the code requires at least Hopper."""
    return kernel(self, replace(request, device="sm_90") if request.device == "sm_100" else request)


@broken(Reference, "kernel", "KRN-02c[packed-documents]: fa4 needs no_doc_ids, but takes a workload without it")
def drops_doc_ids(kernel, self, request):
    """The dispatcher does not pass document ids on, so its guard never sees them."""
    return kernel(self, replace(request, doc_ids=False))


@broken(Reference, "kernel", "KRN-02c[not-causal]: fa4 needs causal, but takes a workload without it")
def assumes_causal(kernel, self, request):
    """Assumes that language models are causal, but the encoder of the eval set is not."""
    return kernel(self, replace(request, causal=True))


@broken(Reference, "kernel", "KRN-02c[sliding-window]: no reason is given")
def falls_back_in_silence(kernel, self, request):
    """Another kernel runs, and the receipt names the requested one."""
    return replace(kernel(self, request), fallback_reason=None)


@broken(Reference, "kernel", "KRN-02d[falls-back]: no reason is given", bugs=("INS-03",))
def swallows_the_import_error(kernel, self, request):
    """`try: import … except ImportError: pass`: the slow path runs without a reason."""
    choice = kernel(self, request)
    missing = "not installed" in (choice.fallback_reason or "")
    return replace(choice, fallback_reason=None) if missing else choice


@broken(Reference, "kernel", "KRN-02d[required]: is required without", bugs=("INS-03",))
def takes_required_for_preferred(kernel, self, request):
    """A missing required kernel falls back like a preferred one, with a line in a log."""
    return kernel(self, replace(request, required=False))


@broken(Reference, "kernel", "KRN-02d[falls-back]: is not installed")
def looks_at_the_device_alone(kernel, self, request):
    """Chooses a kernel because the card supports it; its import fails in the first step."""
    packages = {rule.package for rule in self.kernels() if rule.package is not None}
    return kernel(self, replace(request, installed=request.installed | packages))


def _with_fallback(rules: tuple[KernelRule, ...], variant: str, fallback: str | None) -> tuple[KernelRule, ...]:
    return tuple(replace(rule, fallback=fallback) if rule.variant == variant else rule for rule in rules)


@broken(Reference, "kernels", "KRN-02e[every-rule]: ends in fa2, which is guarded")
def stops_at_a_guarded_kernel(kernels, self):
    """The last fallback is itself a fast kernel: it works on every card in the rack and raises on the next."""
    return _with_fallback(kernels(self), "fa2", None)


@broken(Reference, "kernels", "KRN-02e[every-rule]: falls back to fa4 again")
def goes_round_in_circles(kernels, self):
    """Two kernels fall back to each other, so the choice never ends."""
    return _with_fallback(_with_fallback(kernels(self), "fa4", "fa3"), "fa3", "fa4")


def _believed(proofs: tuple[Proof, ...], **belief: object) -> tuple[Proof, ...]:
    """Proofs with some fields assumed instead of measured."""
    return tuple(replace(proof, **belief) for proof in proofs)  # type: ignore[arg-type]  # fields by name


@broken(Reference, "promotion", "KRN-03[planned]: fa4 is promoted on sm_90 by planned fa4")
def counts_plans(promotion, self, variant, device, proofs):
    """Counts a planned kernel as one that ran."""
    return promotion(self, variant, device, _believed(proofs, kind="executed"))


@broken(Reference, "promotion", "KRN-03[all-three-together]: fa4 is promoted on sm_90")
def adds_evidence_up(promotion, self, variant, device, proofs):
    """Adds up planned, observed and validated: three weak proofs make a strong one."""
    strong = len({proof.kind for proof in proofs}) >= 3
    return promotion(self, variant, device, _believed(proofs, kind="executed") if strong else proofs)


@broken(Reference, "promotion", "KRN-03[in-the-shadow]: fa4 is promoted on sm_90 by executed fa4 on sm_90 (shadow)")
def counts_the_shadow(promotion, self, variant, device, proofs):
    """Counts a kernel that ran beside the one whose result was used; no step was ever taken with its own result."""
    return promotion(self, variant, device, _believed(proofs, runtime_mode="train"))


@broken(Reference, "promotion", "KRN-03[fell-back-silently]: fa4 is promoted on sm_90 by executed fa2")
def reads_the_request(promotion, self, variant, device, proofs):
    """Takes the requested kernel for the one that ran."""
    asked = tuple(replace(proof, actual=proof.requested, fallback_reason=None) for proof in proofs)
    return promotion(self, variant, device, asked)


@broken(
    Reference, "promotion", "KRN-03[another-device]: fa4 is promoted on sm_90 by executed fa4 on sm_100",
    "KRN-03b[passes-beside-another-device]: promotion is False, expected True",
)  # fmt: skip
def proves_for_every_card(promotion, self, variant, device, proofs):
    """A proof on one card promotes the kernel on all of them, and a failure on one card stops it on all of them."""
    return promotion(self, variant, device, _believed(proofs, device=device))


@broken(Reference, "promotion", "KRN-03a[difference-not-measured]: promotion is True, expected False")
def takes_nothing_for_zero(promotion, self, variant, device, proofs):
    """Counts a difference that was not measured as zero."""
    filled = tuple(replace(proof, max_abs_diff=proof.max_abs_diff or 0.0) for proof in proofs)
    return promotion(self, variant, device, filled)


@broken(Reference, "promotion", "KRN-03a[not-finite]: promotion is True, expected False")
def looks_at_speed_alone(promotion, self, variant, device, proofs):
    """Compares only tokens per second, and NaN is fast."""
    return promotion(self, variant, device, _believed(proofs, finite=True, max_abs_diff=0.0, memory_ratio=1.0))


@broken(Reference, "promotion", "KRN-03a[nine-per-cent-slower]: promotion is False, expected True")
def asks_for_a_win_everywhere(promotion, self, variant, device, proofs):
    """Over-correction: requires a kernel to be faster, smaller and exact at once, and none ever is."""
    answer = promotion(self, variant, device, proofs)
    slower = any((proof.throughput_ratio or 0.0) < 1.0 for proof in proofs)
    return replace(answer, allowed=False, reason="not faster") if slower else answer


@mutant(of="KRN-03b", case="one-passes-one-stops", says="promotion is True, expected False")
class TakesTheBestRun(Reference):
    """One passing run is enough, however many failed."""

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        answers = [super(TakesTheBestRun, self).promotion(variant, device, (proof,)) for proof in proofs]
        return next((answer for answer in answers if answer.allowed), Promotion(allowed=False, reason="none passes"))
