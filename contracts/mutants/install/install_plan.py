"""Installers that let pip change torch, and checks that do not notice."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.installation import InstallPlan, InstallStep
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference


@mutant(
    of="INST-02", case="mamba-from-the-index", says="expected a finding on wheels that names torch", bugs=("INS-01",)
)
class TrustsTheOrder(Reference):
    """Torch comes first in the plan, so the rest counts as safe and pip's reports are not read."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return tuple(each for each in super().check_plan(plan) if "would move" not in each.problem)


@mutant(of="INST-02", case="the-rest-moves-it", says="nothing was found, expected a finding on rest", bugs=("INS-01",))
class KnowsThreeCulprits(Reference):
    """Looks only for the three packages that moved torch before, and a fourth one moves it."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return tuple(
            each for each in super().check_plan(plan) if "would move" not in each.problem or each.field != "rest"
        )


@mutant(of="INST-02", case="another-tag", says="nothing was found, expected a finding on rest", bugs=("INS-01",))
class TagsDoNotCount(Reference):
    """Reads pip's report without local tags, so the same night's cu130 build looks like no change."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        def bare(step: InstallStep) -> InstallStep:
            brought = step.would_install
            plain = brought and {name: version.partition("+")[0] for name, version in brought.items()}
            return replace(step, would_install=plain, words=(*step.words, plan.torch))

        steps = tuple(bare(step) for step in plan.steps)
        return super().check_plan(replace(plan, torch=plan.torch.partition("+")[0], steps=steps))


@mutant(
    of="INST-02",
    case="nccl-under-torch",
    says="nothing was found, expected a finding on flash-attn-4",
    bugs=("INS-01",),
)
class WatchesTorchAlone(Reference):
    """torch keeps its version, and the NCCL under it is replaced by another package's pin."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return tuple(
            each
            for each in super().check_plan(plan)
            if "would move" not in each.problem or "move torch" in each.problem
        )


@mutant(of="INST-02", case="pip-gave-no-report", says="nothing was found, expected a finding on flash-attn-4")
class NoReportNoChange(Reference):
    """Treats a missing pip report as an empty one, which moves nothing."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        steps = tuple(replace(step, would_install=step.would_install or {}) for step in plan.steps)
        return super().check_plan(replace(plan, steps=steps))


@mutant(of="INST-02", case="repaired-while-verifying", says="nothing was found, expected a finding on verify")
class AsksOnlyWhatInstalls(Reference):
    """Trusts a step's declared kind: the verify step "repairs" torch with whatever the index has."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        steps = tuple(replace(step, would_install={}) if step.kind == "verify" else step for step in plan.steps)
        return super().check_plan(replace(plan, steps=steps))


@mutant(of="INST-02", case="stable-torch-from-the-start", says="nothing was found, expected a finding on torch")
class AnyTorchIsTorch(Reference):
    """The torch step installs torch, but leaves the choice of build to the index."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return tuple(each for each in super().check_plan(plan) if "the plan says" not in each.problem)


@mutant(of="INST-02", case="torch-again-as-it-is", says="found where all is well: INST-02 rest")
class TorchMayNotBeNamed(Reference):
    """Over-correction: refuses a step that lists exactly the installed torch."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        named = [step for step in plan.steps if step.kind == "packages" and "torch" in (step.would_install or {})]
        return super().check_plan(plan) + tuple(
            Finding(promise="INST-02", field=step.name, value="torch", problem="names torch", remedy="do not")
            for step in named
        )


@mutant(of="INST-02", case="seeds-order", says="found where all is well: INST-02 flash-attn-4")
class NobodyMayAskForTorch(Reference):
    """Over-correction: refuses flash-attn-4, which declares torch and accepts the installed one."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return super().check_plan(replace(plan, guarded=plan.guarded | {"flash-attn-4"}))


@mutant(
    of="INST-02a", case="fla-is-content-today", says="nothing was found, expected a finding on fla", bugs=("INS-01",)
)
class TodaysReportIsEnough(Reference):
    """Accepts a plan because pip moves nothing today. It is run again next week, when the index has a newer torch."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return super().check_plan(replace(plan, guarded=frozenset()))


@mutant(of="INST-02a", case="a-wheel-that-declares-torch", says="nothing was found, expected a finding on wheels",
        bugs=("INS-01",))  # fmt: skip
class WheelsDeclareNothing(Reference):
    """Assumes that no wheel file has metadata, but one was rebuilt with a newer setup.py that declares torch."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        def trusting(step: InstallStep) -> InstallStep:
            return replace(step, requires={}) if any(word.endswith(".whl") for word in step.words) else step

        return super().check_plan(replace(plan, steps=tuple(trusting(step) for step in plan.steps)))


@mutant(of="INST-02a", case="torch-in-an-extra", says="found where all is well: INST-02 wheels")
class SearchesForTheWord(Reference):
    """Over-correction: matches any requirement that contains the text `torch`, including extras and other packages."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        def said(step: InstallStep) -> InstallStep:
            words = {name: tuple("torch" for text in asks if "torch" in text) for name, asks in step.requires.items()}
            return replace(step, requires=words)

        return super().check_plan(replace(plan, steps=tuple(said(step) for step in plan.steps)))


@mutant(of="INST-02b", case="one-wheel-before-torch", says="nothing was found", bugs=("INS-02",))
class TorchSomewhere(Reference):
    """Checks that torch has a step, and not that a wheel is built and installed before it."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        first = sorted(plan.steps, key=lambda step: ("environment", "torch", "packages", "verify").index(step.kind))
        return super().check_plan(replace(plan, steps=tuple(first)))


@mutant(of="INST-02b", case="verify-before-the-rest", says="nothing was found", bugs=("INS-01",))
class VerifiedOnce(Reference):
    """Verifies right after torch, where it is always correct, and installs the rest afterwards."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        verify = [step for step in plan.steps if step.kind == "verify"]
        others = [step for step in plan.steps if step.kind != "verify"]
        return super().check_plan(replace(plan, steps=(*others, *verify)))


@mutant(of="INST-02b", case="verify-of-something-else", says="nothing was found")
class ImportingIsVerifying(Reference):
    """`python -c "import torch"` is the verification, and a downgraded torch also imports."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return tuple(each for each in super().check_plan(plan) if "look for" not in each.problem)


@mutant(of="INST-02b", case="environment-on-a-neighbour", says="nothing was found", bugs=("PRV-16",))
class ComparesPathsAsText(Reference):
    """Compares paths as text: /mnt/database begins with /mnt/data."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        inside = plan.environment.startswith(plan.data_volume)
        return super().check_plan(replace(plan, environment=f"{plan.data_volume}/venv" if inside else plan.environment))


@mutant(of="INST-02b", case="nothing", says="nothing was found")
class EmptyIsHarmless(Reference):
    """Accepts a plan without steps because it moves nothing."""

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return super().check_plan(plan) if plan.steps else ()
