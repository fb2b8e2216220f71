"""Which kernel may run where: guards that fail closed, and evidence that counts.

A stack keeps its own catalogue, so most contracts judge it by the guards that it declares. Kernels that no device can
run are judged in every catalogue.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.spec import NotOffered, Refused
from contracts.spec.capacity import Capacity, KernelChoice, KernelRequest, KernelRule, Proof

UNKNOWN = {
    "unheard-of": ("sm_999",),
    "the-driver-says-nothing": (None,),
    "empty": ("",),
    "a-prefix-of-90": ("sm_9",),
    "90-and-a-digit": ("sm_900",),
    "121-and-a-digit": ("sm_1210",),
    "a-number-above-all": ("sm_990",),
    "a-list": ("sm_90,sm_100",),
    "a-pattern": ("sm_*",),
    "a-build-target": ("compute_90",),
    "a-marketing-name": ("NVIDIA H200",),
}


@contract("KRN-02", asks=("kernels", "kernel"), cases=UNKNOWN, source="hub: FA4 catalogue, sm guards; naming")
def an_unknown_device_takes_no_fast_path(stack: Capacity, device: str | None) -> None:
    """Guards by compute capability fail closed: a device that no rule names gets no fast kernel, whatever is requested.

    A guard of the form `capability >= 90` opens on every later card. A guard that looks for "sm_9" in a string opens on
    a list of architectures. Both run until the kernel reads a descriptor that the card does not have.
    """
    for rule in _fast_rules(stack):
        choice = _choice(stack, replace(_welcome(rule), device=device))
        if choice is None:
            continue  # a refusal also keeps the guard closed
        assert not choice.fast, f"{choice.actual} is fast and runs on {device!r}, where {rule.variant} was asked for"
        _told(choice)


# What the device cannot do, whatever a catalogue says: no FP4 tensor cores before Blackwell and none in GB10's path, no
# FP8 before Ada, FA3 is Hopper's instruction set, FA4 needs more than Ampere.
IMPOSSIBLE = {
    "fp4-on-gb10": ("nvfp4", "sm_121"),
    "fp4-on-h200": ("nvfp4", "sm_90"),
    "fp8-on-a100": ("fp8", "sm_80"),
    "mxfp8-on-h200": ("mxfp8", "sm_90"),
    "fa3-on-b200": ("fa3", "sm_100"),
    "fa3-on-a100": ("fa3", "sm_80"),
    "fa4-on-a100": ("fa4", "sm_80"),
}


@contract("KRN-02a", asks=("kernels", "kernel"), cases=IMPOSSIBLE, source="hub: FA4 catalogue; naming: GB10")
def a_device_takes_no_kernel_that_it_lacks(stack: Capacity, variant: str, device: str) -> None:
    """FP4 does not run on GB10 or Hopper, FP8 does not run on Ampere, FA3 does not run on Blackwell, and FA4 does not
    run on Ampere.

    GB10 is called Blackwell and has neither the FP4 path nor the tensor memory of the B200. A guard by marketing name
    lets it through.
    """
    rules = {rule.variant: rule for rule in stack.kernels()}
    if variant not in rules:
        raise NotOffered(f"{stack.name} has no {variant}", "stack")
    choice = _choice(stack, replace(_welcome(rules[variant]), device=device))
    if choice is not None:
        assert choice.actual != variant, f"{variant} runs on {device}"
        _told(choice)


OWN = {"every-rule": ()}


@contract("KRN-02b", asks=("kernels", "kernel"), cases=OWN, source="hub: kernel catalogue")
def a_guard_opens_where_its_rule_says(stack: Capacity) -> None:
    """Each fast kernel runs when requested on exactly the devices that its rule names, and on no other.

    A guard that is always closed is safe and slow, and nobody notices: the benchmark of the new kernel measures the old
    one.
    """
    rules = _fast_rules(stack)
    devices = sorted({device for rule in rules for device in rule.devices})
    for rule in rules:
        assert rule.devices, f"{rule.variant} is fast but names no device that may run it"
        for device in devices:
            choice = _choice(stack, replace(_welcome(rule), device=device))
            actual = "a refusal" if choice is None else choice.actual
            if device in rule.devices:
                assert actual == rule.variant, f"{rule.variant} on {device} is {actual}, though its rule names {device}"
            else:
                assert actual != rule.variant, f"{rule.variant} runs on {device}, but its rule names {rule.devices}"


_PLAIN = KernelRequest(variant="any", device=None)
WORKLOADS = {  # need → a workload that lacks it
    "not-causal": ("causal", replace(_PLAIN, causal=False)),
    "packed-documents": ("no_doc_ids", replace(_PLAIN, doc_ids=True)),
    "sliding-window": ("no_sliding_window", replace(_PLAIN, sliding_window=True)),
    "padded-batch": ("no_valid_token_counts", replace(_PLAIN, valid_token_counts=True)),
}


@contract("KRN-02c", asks=("kernels", "kernel"), cases=WORKLOADS, source="hub: FA4 in practice")
def a_kernel_does_not_take_a_workload_it_cannot_express(stack: Capacity, need: str, workload: KernelRequest) -> None:
    """A kernel whose rule requires causal attention, no documents, no window or no padding is not chosen for a workload
    without that property, and the choice gives a reason.

    Dense FA4 without document ids computes attention across packed documents, and the loss looks better for it.
    """
    concerned = [rule for rule in _fast_rules(stack) if need in rule.needs]
    if not concerned:
        raise NotOffered(f"no kernel of {stack.name} needs {need}", "stack")
    for rule in concerned:
        for device in rule.devices:
            welcome = _welcome(rule)
            request = replace(workload, variant=rule.variant, device=device, installed=welcome.installed)
            choice = _choice(stack, request)
            if choice is None:
                continue
            assert choice.actual != rule.variant, (
                f"{rule.variant} needs {need}, but takes a workload without it on {device}"
            )
            _told(choice)


MISSING = {"falls-back": (False,), "required": (True,)}


@contract("KRN-02d", asks=("kernels", "kernel"), cases=MISSING, source="bringup; INS-03")
def a_missing_package_is_told(stack: Capacity, required: bool) -> None:
    """A kernel whose package does not import is not chosen: a preferred kernel falls back with a reason, and a required
    kernel is refused.

    `try: import … except ImportError: pass` is how a node runs the slow path for a week.
    """
    packaged = [rule for rule in _fast_rules(stack) if rule.package is not None]
    if not packaged:
        raise NotOffered(f"no kernel of {stack.name} names a package", "stack")
    for rule in packaged:
        others = _welcome(rule).installed - {rule.package or ""}
        request = replace(_welcome(rule), device=rule.devices[0], installed=others, required=required)
        choice = _choice(stack, request)
        if choice is None:
            continue
        assert not required, f"{rule.variant} is required without {rule.package}, and {choice.actual} runs instead"
        assert choice.actual != rule.variant, f"{rule.variant} is chosen, but {rule.package} is not installed"
        _told(choice)


@contract("KRN-02e", asks="kernels", cases=OWN, source="hub: kernel catalogue")
def every_fallback_ends_where_nothing_is_guarded(stack: Capacity) -> None:
    """Each chain of fallbacks stays in its family and ends in a kernel that runs on every device.

    A last fallback that is itself guarded raises on the one device that nobody tried.
    """
    rules = {rule.variant: rule for rule in stack.kernels()}
    assert rules, "the catalogue is empty"
    for rule in rules.values():
        seen, at = [rule.variant], rule
        while at.fast:
            assert at.fallback is not None, f"{' → '.join(seen)} ends in {at.variant}, which is guarded"
            assert at.fallback in rules, f"{at.variant} falls back to {at.fallback}, which is not in the catalogue"
            assert at.fallback not in seen, f"{' → '.join(seen)} falls back to {at.fallback} again"
            at = rules[at.fallback]
            seen.append(at.variant)
            assert at.family == rule.family, f"{rule.variant} ({rule.family}) falls back to {at.variant} ({at.family})"


RAN = Proof(
    kind="executed", device="sm_90", requested="fa4", actual="fa4", receipt="receipt-7", finite=True,
    max_abs_diff=0.004, throughput_ratio=1.12, memory_ratio=1.0,
)  # fmt: skip

NO_PROOF: dict[str, tuple[Proof, ...]] = {
    "none": (),
    "planned": (replace(RAN, kind="planned"),),
    "observed": (replace(RAN, kind="observed"),),
    "validated": (replace(RAN, kind="validated"),),
    "all-three-together": tuple(replace(RAN, kind=kind) for kind in ("planned", "observed", "validated")),
    "in-the-shadow": (replace(RAN, runtime_mode="shadow"),),
    "fell-back": (replace(RAN, actual="fa2", fallback_reason="fa4 does not take doc_ids"),),
    "fell-back-silently": (replace(RAN, actual="fa2"),),
    "another-kernel": (replace(RAN, requested="fa3", actual="fa3"),),
    "another-device": (replace(RAN, device="sm_100"),),
    "no-receipt": (replace(RAN, receipt=None),),
}


@contract(
    "KRN-03", asks="promotion", cases={name: (proofs,) for name, proofs in NO_PROOF.items()},
    source="hub: FA4 in practice, evidence classes",
)  # fmt: skip
def only_an_executed_proof_counts(stack: Capacity, proofs: tuple[Proof, ...]) -> None:
    """Only an executed proof promotes a kernel: a run on that device, with a receipt, in which the kernel itself ran
    and its result was used (no shadow run). No number of plans, observations and validations replaces it.

    The planner chose FA4, the profile showed its code loaded, and the shadow run agreed to 1e-3. None of them had taken
    a training step with it.
    """
    answer = stack.promotion("fa4", "sm_90", proofs)
    told = ", ".join(f"{proof.kind} {proof.actual} on {proof.device} ({proof.runtime_mode})" for proof in proofs)
    assert not answer.allowed, f"fa4 is promoted on sm_90 by {told or 'nothing'}"
    assert answer.reason, "the promotion is declined without a reason"


STOPPED = {
    "not-finite": (replace(RAN, finite=False), False),
    "finite-not-looked-at": (replace(RAN, finite=None), False),
    "difference-above": (replace(RAN, max_abs_diff=0.0101), False),
    "difference-not-measured": (replace(RAN, max_abs_diff=None), False),
    "difference-at-the-limit": (replace(RAN, max_abs_diff=0.01), True),
    "twelve-per-cent-slower": (replace(RAN, throughput_ratio=0.88), False),
    "nine-per-cent-slower": (replace(RAN, throughput_ratio=0.91), True),
    "six-per-cent-more-memory": (replace(RAN, memory_ratio=1.06), False),
    "four-per-cent-more-memory": (replace(RAN, memory_ratio=1.04), True),
    "memory-not-measured": (replace(RAN, memory_ratio=None), False),
    "passes": (RAN, True),
    "passes-in-eval": (replace(RAN, runtime_mode="eval"), True),
}


@contract("KRN-03a", asks="promotion", cases=STOPPED, source="hub: FA4 in practice, promotion stops")
def an_executed_proof_promotes_unless_it_stops(stack: Capacity, proof: Proof, allowed: bool) -> None:
    """An executed proof promotes a kernel unless the result is not finite, differs by more than 0.01, is more than 10 %
    slower or takes more than 5 % more memory. A value that was not measured does not pass.

    The first FA4 variants were dropped on exactly these points, after a benchmark that looked only at tokens per
    second.
    """
    answer = stack.promotion("fa4", "sm_90", (proof,))
    assert answer.allowed == allowed, f"promotion is {answer.allowed}, expected {allowed}: {answer.reason}"


MIXED = {
    "passes-behind-plans": ((replace(RAN, kind="planned"), replace(RAN, kind="validated"), RAN), True),
    "one-passes-one-stops": ((RAN, replace(RAN, max_abs_diff=0.3)), False),
    "one-stops-one-passes": ((replace(RAN, finite=False), RAN), False),
    "passes-beside-another-device": ((replace(RAN, device="sm_100", finite=False), RAN), True),
}


@contract("KRN-03b", asks="promotion", cases=MIXED, source="hub: FA4 in practice")
def proofs_are_weighed_together(stack: Capacity, proofs: tuple[Proof, ...], allowed: bool) -> None:
    """If one executed proof fails, the kernel is not promoted, however many pass. A proof that does not count, such as
    a plan or a run on another device, changes nothing either way.

    Ten runs until one passes is not evidence, and a failure on another card is not a failure on this one.
    """
    answer = stack.promotion("fa4", "sm_90", proofs)
    assert answer.allowed == allowed, f"promotion is {answer.allowed}, expected {allowed}: {answer.reason}"


def _fast_rules(stack: Capacity) -> list[KernelRule]:
    rules = [rule for rule in stack.kernels() if rule.fast]
    assert rules, "the catalogue has no fast kernel to guard"
    return rules


def _welcome(rule: KernelRule) -> KernelRequest:
    """A request that only the device can rule out: the plainest workload, with everything installed."""
    installed = {"flash-attn", "flash-attn-3", "flash-attn-4", "transformer-engine", "mamba-ssm"}
    return KernelRequest(variant=rule.variant, device=None, installed=frozenset(installed | {rule.package or "torch"}))


def _choice(stack: Capacity, request: KernelRequest) -> KernelChoice | None:
    """The chosen kernel, or None for a refusal."""
    try:
        return stack.kernel(request)
    except Refused:
        return None


def _told(choice: KernelChoice) -> None:
    assert choice.actual == choice.requested or choice.fallback_reason, (
        f"{choice.actual} runs where {choice.requested} was requested, and no reason is given"
    )
