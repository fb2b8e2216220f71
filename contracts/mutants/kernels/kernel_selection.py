"""Kernel choices that are wrong, unrecorded or recorded wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import Refused, refuse
from contracts.spec.kernel_selection import Facts, Kernel, Package, Seam, Site, Wish
from contracts.spec.recipe import Mode, Recipe
from contracts.stacks.reference.stack import Reference


@mutant(of="KRN-01a", case="projections-no-package", says="falls back from transformer-engine and gives no reason")
@mutant(of="KRN-01f", case="all-letters", says="scan: mamba-ssm requested, native runs, None")
class FallsBackInSilence(Reference):
    """try, except ImportError, pass: the stack's own kernel runs without a reason."""

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        return replace(super().seam(site, wish, recipe, mode, facts), reason=None)


@mutant(of="KRN-01a", case="scan-broken", says="scan records native as requested, expected mamba-ssm")
class RecordsWhatRanAsRequested(Reference):
    """The record is written after the fallback, so it shows the fallback as the request."""

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        seam = super().seam(site, wish, recipe, mode, facts)
        return replace(seam, requested=seam.actual, reason=None)


@mutant(of="KRN-01a", case="experts-on-v100", says="experts runs as transformer-engine where it cannot")
class LooksAtNoDevice(Reference):
    """Assumes that a kernel runs because its import works."""

    def unfit(self, kernel: Kernel, recipe: Recipe, facts: Facts) -> list[str]:
        return []


@mutant(of="KRN-01a", case="device-nobody-knows", says="attention runs as transformer-engine where it cannot")
class TakesAPrefixForTheDevice(Reference):
    """Reads sm_121a as sm_121, so an untested device opens the fast path."""

    def unfit(self, kernel: Kernel, recipe: Recipe, facts: Facts) -> list[str]:
        known = (facts.capability or "").rstrip("abcdef")
        return super().unfit(kernel, recipe, replace(facts, capability=known))


@mutant(of="KRN-01a", case="device-says-nothing", says="attention runs as transformer-engine where it cannot")
class TakesSilenceForTheNewest(Reference):
    """Treats a driver that does not answer as one too new to be known."""

    def unfit(self, kernel: Kernel, recipe: Recipe, facts: Facts) -> list[str]:
        return super().unfit(kernel, recipe, replace(facts, capability=facts.capability or "sm_100"))


@mutant(of="KRN-01a", case="mxfp8-on-h200", says="mlp runs as transformer-engine where it cannot")
class OneGuardForAllOfFp8(Reference):
    """Guards all FP8 formats as one: FP8 runs on this device, but mxfp8's block scales do not."""

    def unfit(self, kernel: Kernel, recipe: Recipe, facts: Facts) -> list[str]:
        plain = None if recipe.fp8 is None else replace(recipe.fp8, scaling="tensorwise")
        return super().unfit(kernel, replace(recipe, fp8=plain), facts)


@mutant(of="KRN-01a", case="mlp-neither", says="which does not name 'cpu'")
class NamesTheFirstGuardOnly(Reference):
    """Gives one reason at a time, so the operator fixes one cause only to find the next."""

    def closed(self, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts) -> list[str]:
        return super().closed(site, kernel, recipe, mode, facts)[:1]


@mutant(of="KRN-01a", case="recurrence-without-a-kernel", says="recurrence runs as mamba-ssm where it cannot")
@mutant(of="KRN-01a", case="scan-of-turned-rates", says="scan runs as mamba-ssm where it cannot")
class TakesAPackageForItsKernels(Reference):
    """Opens every site of a package that is there, also one that it has no kernel for."""

    def closed(self, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts) -> list[str]:
        return super().closed("attention", kernel, recipe, mode, facts)


@mutant(of="KRN-01a", case="projections-broken", says="which does not name 'Found empty'")
@mutant(of="KRN-01e", case="scan", says="mamba-ssm is broken, but the reason is", bugs=("INS-02",))
class TakesBrokenForAbsent(Reference):
    """A failed import is an ImportError, and an ImportError means that it is not installed."""

    def missing(self, name: str, package: Package) -> list[str]:
        return super().missing(name, Package(state="absent") if package.state == "broken" else package)


@mutant(of="KRN-01e", case="projections", says="transformer-engine is absent, but the reason is")
class TakesAbsentForBroken(Reference):
    """Reports a package that nobody installed as a broken installation."""

    def missing(self, name: str, package: Package) -> list[str]:
        if package.state == "absent":
            return [f"{name} is broken or not installed"]
        return super().missing(name, package)


@mutant(of="KRN-01a", case="grouped-inner-width", says="experts runs as torch-grouped where it cannot")
class LooksAtHiddenOnly(Reference):
    """Ignores the experts' own width: rows of 40 bytes go to a kernel that reads 16 at a time."""

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        return [each for each in super().closed_to_grouped(recipe, facts) if "expert_hidden" not in each]


@mutant(of="KRN-01b", case="grouped-on-a-host", says="experts runs as native (torch's grouped matmul runs on CUDA")
class WantsADeviceForEverything(Reference):
    """Over-correction: refuses every fast kernel on a host without a GPU, though this one runs there."""

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        found = super().closed_to_grouped(recipe, facts)
        return found if facts.device == "cuda" else [*found, "torch's grouped matmul runs on CUDA"]


@mutant(of="KRN-01b", case="scan", says="scan runs as native (transformer-engine 2.12.0 is installed and broken")
class ClosesAllForOne(Reference):
    """One package that does not import makes every site fall back."""

    def missing(self, name: str, package: Package) -> list[str]:
        return super().missing(name, package) + self.others

    others: list[str] = []

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        found = [each for name, package in facts.packages.items() for each in Reference().missing(name, package)]
        self.others = found
        return super().seam(site, wish, recipe, mode, facts)


@mutant(of="KRN-01b", case="own-code-on-h200", says="attention runs as requested, but gives a reason")
class AlwaysGivesAReason(Reference):
    """Writes a reason into every row, so a fallback can no longer be recognised."""

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        seam = super().seam(site, wish, recipe, mode, facts)
        return replace(seam, reason=seam.reason or f"{seam.actual} was requested")


@mutant(of="KRN-01b", case="projections", says="attention runs as native (transformer-engine runs on CUDA devices")
class AsksItsOwnMachine(Reference):
    """Looks up the facts of its own machine and ignores those in the question."""

    def closed(self, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts) -> list[str]:
        return super().closed(site, kernel, recipe, mode, replace(facts, device="cpu", capability=None))


@mutant(of="KRN-01c", case="scan-no-package", says="was accepted, expected a refusal")
class PrefersWhatIsRequired(Reference):
    """Reads `required` and does not pass it on, so a run that should prove a kernel proves another."""

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        return super().seam(site, replace(wish, required=False), recipe, mode, facts)


@mutant(of="KRN-01c", case="mxfp8-on-h200", says="the refusal of transformer-engine for mlp does not name")
class RefusesWithoutSayingWhat(Reference):
    """The refusal says only that something is not available."""

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        try:
            return super().seam(site, wish, recipe, mode, facts)
        except Refused:
            raise refuse("kernels", wish.kernel, "is not available", "choose another") from None


@mutant(of="KRN-01b", case="experts", says="a legal input was refused: kernels.experts")
class RequiresABlessing(Reference):
    """Over-correction: refuses every required kernel."""

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        if wish.required and wish.kernel != "native":
            raise refuse(f"kernels.{site}", wish.kernel, "cannot be required", "prefer it")
        return super().seam(site, wish, recipe, mode, facts)


@mutant(of="KRN-01d", case="scan-for-experts", says="was accepted, expected a refusal")
class TakesAnyNameForAnySite(Reference):
    """Ignores a kernel that no site has, and uses the stack's own."""

    def seams(self, recipe: Recipe, mode: Mode, requested: Mapping[Site, Wish], facts: Facts) -> tuple[Seam, ...]:
        try:
            return super().seams(recipe, mode, requested, facts)
        except Refused:
            return super().seams(recipe, mode, {}, facts)


@mutant(of="KRN-01f", case="dense", says="rows are ['attention', 'mlp', 'experts', 'scan', 'recurrence'], expected")
@mutant(
    of="KRN-01f", case="recurrence-not-reached", says="rows are ['attention', 'mlp', 'experts', 'scan', 'recurrence']"
)
class HasARowForEverySite(Reference):
    """Lists every site instead of the recipe's own: the receipt of a dense model has a fallback of experts."""

    def sites(self, recipe: Recipe) -> tuple[Site, ...]:
        return ("attention", "mlp", "experts", "scan", "recurrence")

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        return [] if recipe.moe is None else super().closed_to_grouped(recipe, facts)


@mutant(of="KRN-01f", case="no-shared-expert", says="expected ('attention', 'experts', 'scan')")
class ForgetsTheExperts(Reference):
    """Without a shared expert the routed experts have no row either."""

    def sites(self, recipe: Recipe) -> tuple[Site, ...]:
        found = super().sites(recipe)
        return found if "mlp" in found else tuple(site for site in found if site != "experts")


@mutant(of="KRN-01h", case="here", says="the facts do not mention transformer-engine")
class LooksForWhatItFound(Reference):
    """Omits absent packages from the facts, so "not found" cannot be told from "not looked for"."""

    def kernel_facts(self) -> Facts:
        facts = super().kernel_facts()
        return replace(facts, packages={k: each for k, each in facts.packages.items() if each.state == "importable"})


@mutant(of="KRN-01h", case="here", says="but the device is")
class TakesTheBuildForTheDevice(Reference):
    """Takes torch's build, with or without CUDA, for the presence of a device."""

    def kernel_facts(self) -> Facts:
        facts = super().kernel_facts()
        other = Facts(device="cpu") if facts.device == "cuda" else Facts(device="cuda", capability="sm_90")
        return replace(facts, device=other.device, capability=other.capability)
