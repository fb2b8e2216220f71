"""Installers that let pip change torch, checks that do not notice, and kernels that do not run or compute nothing."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference


@broken(
    Reference,
    "check_plan",
    "INST-02[mamba-from-the-index]: expected a finding on wheels that names torch",
    bugs=("INS-01",),
)
def trusts_the_order(check_plan, self, plan):
    """Torch comes first in the plan, so the rest counts as safe and pip's reports are not read."""
    return tuple(each for each in check_plan(self, plan) if "would move" not in each.problem)


@broken(
    Reference,
    "check_plan",
    "INST-02[the-rest-moves-it]: nothing was found, expected a finding on rest",
    bugs=("INS-01",),
)
def knows_three_culprits(check_plan, self, plan):
    """Looks only for the three packages that moved torch before, and a fourth one moves it."""
    return tuple(each for each in check_plan(self, plan) if "would move" not in each.problem or each.field != "rest")


@broken(
    Reference, "check_plan", "INST-02[another-tag]: nothing was found, expected a finding on rest", bugs=("INS-01",)
)
def tags_do_not_count(check_plan, self, plan):
    """Reads pip's report without local tags, so the same night's cu130 build looks like no change."""

    def bare(step):
        brought = step.would_install
        plain = brought and {name: version.partition("+")[0] for name, version in brought.items()}
        return replace(step, would_install=plain, words=(*step.words, plan.torch))

    steps = tuple(bare(step) for step in plan.steps)
    return check_plan(self, replace(plan, torch=plan.torch.partition("+")[0], steps=steps))


@broken(
    Reference,
    "check_plan",
    "INST-02[nccl-under-torch]: nothing was found, expected a finding on flash-attn-4",
    bugs=("INS-01",),
)
def watches_torch_alone(check_plan, self, plan):
    """torch keeps its version, and the NCCL under it is replaced by another package's pin."""
    return tuple(
        each for each in check_plan(self, plan) if "would move" not in each.problem or "move torch" in each.problem
    )


@broken(Reference, "check_plan", "INST-02[pip-gave-no-report]: nothing was found, expected a finding on flash-attn-4")
def no_report_no_change(check_plan, self, plan):
    """Treats a missing pip report as an empty one, which moves nothing."""
    steps = tuple(replace(step, would_install=step.would_install or {}) for step in plan.steps)
    return check_plan(self, replace(plan, steps=steps))


@broken(Reference, "check_plan", "INST-02[repaired-while-verifying]: nothing was found, expected a finding on verify")
def asks_only_what_installs(check_plan, self, plan):
    """Trusts a step's declared kind: the verify step "repairs" torch with whatever the index has."""
    steps = tuple(replace(step, would_install={}) if step.kind == "verify" else step for step in plan.steps)
    return check_plan(self, replace(plan, steps=steps))


@broken(Reference, "check_plan", "INST-02[stable-torch-from-the-start]: nothing was found, expected a finding on torch")
def any_torch_is_torch(check_plan, self, plan):
    """The torch step installs torch, but leaves the choice of build to the index."""
    return tuple(each for each in check_plan(self, plan) if "the plan says" not in each.problem)


@broken(Reference, "check_plan", "INST-02[torch-again-as-it-is]: found where all is well: INST-02 rest")
def torch_may_not_be_named(check_plan, self, plan):
    """Over-correction: refuses a step that lists exactly the installed torch."""
    named = [step for step in plan.steps if step.kind == "packages" and "torch" in (step.would_install or {})]
    return check_plan(self, plan) + tuple(
        Finding(promise="INST-02", field=step.name, value="torch", problem="names torch", remedy="do not")
        for step in named
    )


@broken(Reference, "check_plan", "INST-02[seeds-order]: found where all is well: INST-02 flash-attn-4")
def nobody_may_ask_for_torch(check_plan, self, plan):
    """Over-correction: refuses flash-attn-4, which declares torch and accepts the installed one."""
    return check_plan(self, replace(plan, guarded=plan.guarded | {"flash-attn-4"}))


@broken(
    Reference,
    "check_plan",
    "INST-02a[fla-is-content-today]: nothing was found, expected a finding on fla",
    bugs=("INS-01",),
)
def todays_report_is_enough(check_plan, self, plan):
    """Accepts a plan because pip moves nothing today. It is run again next week, when the index has a newer torch."""
    return check_plan(self, replace(plan, guarded=frozenset()))


@broken(
    Reference,
    "check_plan",
    "INST-02a[a-wheel-that-declares-torch]: nothing was found, expected a finding on wheels",
    bugs=("INS-01",),
)
def wheels_declare_nothing(check_plan, self, plan):
    """Assumes that no wheel file has metadata, but one was rebuilt with a newer setup.py that declares torch."""

    def trusting(step):
        return replace(step, requires={}) if any(word.endswith(".whl") for word in step.words) else step

    return check_plan(self, replace(plan, steps=tuple(trusting(step) for step in plan.steps)))


@broken(Reference, "check_plan", "INST-02a[torch-in-an-extra]: found where all is well: INST-02 wheels")
def searches_for_the_word(check_plan, self, plan):
    """Over-correction: matches any requirement that contains the text `torch`, including extras and other packages."""

    def said(step):
        words = {name: tuple("torch" for text in asks if "torch" in text) for name, asks in step.requires.items()}
        return replace(step, requires=words)

    return check_plan(self, replace(plan, steps=tuple(said(step) for step in plan.steps)))


@broken(Reference, "check_plan", "INST-02b[one-wheel-before-torch]: nothing was found", bugs=("INS-02",))
def torch_somewhere(check_plan, self, plan):
    """Checks that torch has a step, and not that a wheel is built and installed before it."""
    first = sorted(plan.steps, key=lambda step: ("environment", "torch", "packages", "verify").index(step.kind))
    return check_plan(self, replace(plan, steps=tuple(first)))


@broken(Reference, "check_plan", "INST-02b[verify-before-the-rest]: nothing was found", bugs=("INS-01",))
def verified_once(check_plan, self, plan):
    """Verifies right after torch, where it is always correct, and installs the rest afterwards."""
    verify = [step for step in plan.steps if step.kind == "verify"]
    others = [step for step in plan.steps if step.kind != "verify"]
    return check_plan(self, replace(plan, steps=(*others, *verify)))


@broken(Reference, "check_plan", "INST-02b[verify-of-something-else]: nothing was found")
def importing_is_verifying(check_plan, self, plan):
    """`python -c "import torch"` is the verification, and a downgraded torch also imports."""
    return tuple(each for each in check_plan(self, plan) if "look for" not in each.problem)


@broken(Reference, "check_plan", "INST-02b[environment-on-a-neighbour]: nothing was found", bugs=("PRV-16",))
def compares_paths_as_text(check_plan, self, plan):
    """Compares paths as text: /mnt/database begins with /mnt/data."""
    inside = plan.environment.startswith(plan.data_volume)
    return check_plan(self, replace(plan, environment=f"{plan.data_volume}/venv" if inside else plan.environment))


@broken(Reference, "check_plan", "INST-02b[nothing]: nothing was found")
def empty_is_harmless(check_plan, self, plan):
    """Accepts a plan without steps because it moves nothing."""
    return check_plan(self, plan) if plan.steps else ()


@broken(Reference, "run_block", "INST-03b[mamba-ssm]: native ran at scan, and mamba-ssm was required")
def catches_what_the_import_raises(run_block, self, call):
    """Any error of the package is caught, and the slow path runs."""
    return run_block(self, replace(call, kernels={}))


@broken(Reference, "run_block", "INST-03b[transformer-engine]: beside the stack's own kernel: y differs")
def launches_for_another_device(run_block, self, call):
    """The binary has no code for this device, and nobody asks whether the launch failed: the output stays zero."""
    run = run_block(self, call)
    required = any(wish.required for wish in call.kernels.values())
    return replace(run, y=replace(run.y, data=bytes(len(run.y.data)))) if required else run
