"""Kernel choices that are wrong, unrecorded or recorded wrongly."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken
from contracts.spec import Facts, Mode, Package, Recipe, Refused, Seam, Site, Wish, refuse
from contracts.stacks.reference.stack import Reference


@broken(
    Reference,
    "seam",
    "KRN-01f[all-letters]: scan: mamba-ssm requested, native runs, None",
    "KRN-01a[projections-no-package]: falls back from transformer-engine and gives no reason",
)
def falls_back_in_silence(seam, self, site, wish, recipe, mode, facts):
    """try, except ImportError, pass: the stack's own kernel runs without a reason."""
    return replace(seam(self, site, wish, recipe, mode, facts), reason=None)


@broken(Reference, "seam", "KRN-01a[scan-broken]: scan records native as requested, expected mamba-ssm")
def records_what_ran_as_requested(former, self, site, wish, recipe, mode, facts):
    """The record is written after the fallback, so it shows the fallback as the request."""
    seam = former(self, site, wish, recipe, mode, facts)
    return replace(seam, requested=seam.actual, reason=None)


@broken(Reference, "unfit", "KRN-01a[experts-on-v100]: experts runs as transformer-engine where it cannot")
def looks_at_no_device(unfit, self, kernel, recipe, facts):
    """Assumes that a kernel runs because its import works."""
    return []


@broken(Reference, "unfit", "KRN-01a[device-nobody-knows]: attention runs as transformer-engine where it cannot")
def takes_a_prefix_for_the_device(unfit, self, kernel, recipe, facts):
    """Reads sm_121a as sm_121, so an untested device opens the fast path."""
    known = (facts.capability or "").rstrip("abcdef")
    return unfit(self, kernel, recipe, replace(facts, capability=known))


@broken(Reference, "unfit", "KRN-01a[device-says-nothing]: attention runs as transformer-engine where it cannot")
def takes_silence_for_the_newest(unfit, self, kernel, recipe, facts):
    """Treats a driver that does not answer as one too new to be known."""
    return unfit(self, kernel, recipe, replace(facts, capability=facts.capability or "sm_100"))


@broken(Reference, "unfit", "KRN-01a[mxfp8-on-h200]: mlp runs as transformer-engine where it cannot")
def one_guard_for_all_of_fp8(unfit, self, kernel, recipe, facts):
    """Guards all FP8 formats as one: FP8 runs on this device, but mxfp8's block scales do not."""
    plain = None if recipe.fp8 is None else replace(recipe.fp8, scaling="tensorwise")
    return unfit(self, kernel, replace(recipe, fp8=plain), facts)


@broken(Reference, "closed", "KRN-01a[mlp-neither]: which does not name 'cpu'")
def names_the_first_guard_only(closed, self, site, kernel, recipe, mode, facts):
    """Gives one reason at a time, so the operator fixes one cause only to find the next."""
    return closed(self, site, kernel, recipe, mode, facts)[:1]


@broken(
    Reference,
    "closed",
    "KRN-01a[scan-of-turned-rates]: scan runs as mamba-ssm where it cannot",
    "KRN-01a[recurrence-without-a-kernel]: recurrence runs as mamba-ssm where it cannot",
)
def takes_a_package_for_its_kernels(closed, self, site, kernel, recipe, mode, facts):
    """Opens every site of a package that is there, also one that it has no kernel for."""
    return closed(self, "attention", kernel, recipe, mode, facts)


@mutant(of="KRN-01a", case="projections-broken", says="which does not name 'Found empty'")
@broken(Reference, "missing", "KRN-01e[scan]: mamba-ssm is broken, but the reason is", bugs=("INS-02",))
def takes_broken_for_absent(missing, self, name, package):
    """A failed import is an ImportError, and an ImportError means that it is not installed."""
    return missing(self, name, Package(state="absent") if package.state == "broken" else package)


@broken(Reference, "missing", "KRN-01e[projections]: transformer-engine is absent, but the reason is")
def takes_absent_for_broken(missing, self, name, package):
    """Reports a package that nobody installed as a broken installation."""
    if package.state == "absent":
        return [f"{name} is broken or not installed"]
    return missing(self, name, package)


@broken(Reference, "closed_to_grouped", "KRN-01a[grouped-inner-width]: experts runs as torch-grouped where it cannot")
def looks_at_hidden_only(closed_to_grouped, self, recipe, facts):
    """Ignores the experts' own width: rows of 40 bytes go to a kernel that reads 16 at a time."""
    return [each for each in closed_to_grouped(self, recipe, facts) if "expert_hidden" not in each]


@broken(
    Reference,
    "closed_to_grouped",
    "KRN-01b[grouped-on-a-host]: experts runs as native (torch's grouped matmul runs on CUDA",
)
def wants_a_device_for_everything(closed_to_grouped, self, recipe, facts):
    """Over-correction: refuses every fast kernel on a host without a GPU, though this one runs there."""
    found = closed_to_grouped(self, recipe, facts)
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


@broken(Reference, "seam", "KRN-01b[own-code-on-h200]: attention runs as requested, but gives a reason")
def always_gives_a_reason(former, self, site, wish, recipe, mode, facts):
    """Writes a reason into every row, so a fallback can no longer be recognised."""
    seam = former(self, site, wish, recipe, mode, facts)
    return replace(seam, reason=seam.reason or f"{seam.actual} was requested")


@broken(Reference, "closed", "KRN-01b[projections]: attention runs as native (transformer-engine runs on CUDA devices")
def asks_its_own_machine(closed, self, site, kernel, recipe, mode, facts):
    """Looks up the facts of its own machine and ignores those in the question."""
    return closed(self, site, kernel, recipe, mode, replace(facts, device="cpu", capability=None))


@broken(Reference, "seam", "KRN-01c[scan-no-package]: was accepted, expected a refusal")
def prefers_what_is_required(seam, self, site, wish, recipe, mode, facts):
    """Reads `required` and does not pass it on, so a run that should prove a kernel proves another."""
    return seam(self, site, replace(wish, required=False), recipe, mode, facts)


@broken(Reference, "seam", "KRN-01c[mxfp8-on-h200]: the refusal of transformer-engine for mlp does not name")
def refuses_without_saying_what(seam, self, site, wish, recipe, mode, facts):
    """The refusal says only that something is not available."""
    try:
        return seam(self, site, wish, recipe, mode, facts)
    except Refused:
        raise refuse("kernels", wish.kernel, "is not available", "choose another") from None


@broken(Reference, "seam", "KRN-01b[experts]: a legal input was refused: kernels.experts")
def requires_a_blessing(seam, self, site, wish, recipe, mode, facts):
    """Over-correction: refuses every required kernel."""
    if wish.required and wish.kernel != "native":
        raise refuse(f"kernels.{site}", wish.kernel, "cannot be required", "prefer it")
    return seam(self, site, wish, recipe, mode, facts)


@broken(Reference, "seams", "KRN-01d[scan-for-experts]: was accepted, expected a refusal")
def takes_any_name_for_any_site(seams, self, recipe, mode, requested, facts):
    """Ignores a kernel that no site has, and uses the stack's own."""
    try:
        return seams(self, recipe, mode, requested, facts)
    except Refused:
        return seams(self, recipe, mode, {}, facts)


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


@broken(Reference, "sites", "KRN-01f[no-shared-expert]: expected ('attention', 'experts', 'scan')")
def forgets_the_experts(sites, self, recipe):
    """Without a shared expert the routed experts have no row either."""
    found = sites(self, recipe)
    return found if "mlp" in found else tuple(site for site in found if site != "experts")


@broken(Reference, "kernel_facts", "KRN-01h[here]: the facts do not mention transformer-engine")
def looks_for_what_it_found(kernel_facts, self):
    """Omits absent packages from the facts, so "not found" looks like "not looked for"."""
    facts = kernel_facts(self)
    return replace(facts, packages={k: each for k, each in facts.packages.items() if each.state == "importable"})


@broken(Reference, "kernel_facts", "KRN-01h[here]: but the device is")
def takes_the_build_for_the_device(kernel_facts, self):
    """Takes torch's build, with or without CUDA, for the presence of a device."""
    facts = kernel_facts(self)
    other = Facts(device="cpu") if facts.device == "cuda" else Facts(device="cuda", capability="sm_90")
    return replace(facts, device=other.device, capability=other.capability)
