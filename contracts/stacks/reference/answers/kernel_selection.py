"""Kernel selection: which kernel runs at each site, and why a requested one does not (spec/kernel_selection.py).

A selection is a function only of recipe, request and facts: it imports no package and queries no device. The reason
names every closed guard, so that one reading is enough to fix them all. Guards of the kernel catalogue are taken from
there.
"""

import re
from collections.abc import Mapping
from typing import cast

from contracts.spec import Compute, Computed, Facts, Kernel, Mode, Package, Recipe, Seam, Site, Wish, refuse
from contracts.spec import kernels as catalogue
from contracts.spec import pattern as patterns
from contracts.spec.capacity import KernelRequest
from contracts.stacks.reference.answers.model import ModelAnswers

CHOICES: Mapping[Site, tuple[Kernel, ...]] = {
    "attention": ("native", "transformer-engine"),
    "mlp": ("native", "transformer-engine"),
    "experts": ("native", "torch-grouped", "transformer-engine"),
    "scan": ("native", "mamba-ssm"),
    "recurrence": ("native", "mamba-ssm"),
}
DEFAULTS: Mapping[Site, Kernel] = {"experts": "torch-grouped"}  # native elsewhere
PACKAGES: Mapping[str, tuple[str, ...]] = {  # distribution → what of it is called
    "mamba-ssm": ("mamba_ssm.ops.triton.ssd_combined",),
    "transformer-engine": ("transformer_engine.pytorch", "transformer_engine.common.recipe"),
}
ROW_ALIGNMENT = 8  # elements: grouped_mm wants rows of a multiple of 16 bytes, and an element has 2


class KernelSelectionAnswers(ModelAnswers):
    """The answers of `Reference` on this subject."""

    def kernel_facts(self) -> Facts:
        from contracts.instruments import accelerator, import_probe

        packages = {name: import_probe.probe(name, modules) for name, modules in PACKAGES.items()}
        card = accelerator.first()
        if card is None:
            return Facts(device="cpu", packages=packages)
        return Facts(device="cuda", capability="sm_{}{}".format(*card.capability), packages=packages)

    def seams(self, recipe: Recipe, mode: Mode, requested: Mapping[Site, Wish], facts: Facts) -> tuple[Seam, ...]:
        return tuple(
            self.seam(site, requested.get(site) or Wish(kernel=DEFAULTS.get(site, "native")), recipe, mode, facts)
            for site in self.sites(recipe)
        )

    def sites(self, recipe: Recipe) -> tuple[Site, ...]:
        """Where this recipe has a choice."""
        letters = set(patterns.parse(recipe.pattern, recipe.depth).letters)
        has: dict[Site, bool] = {
            "attention": "A" in letters,
            "mlp": "E" in letters and (recipe.moe is None or recipe.moe.shared_hidden > 0),
            "experts": "E" in letters and recipe.moe is not None,
            "scan": "M" in recipe.mixers,
            "recurrence": "R" in letters,
        }
        return tuple(site for site, there in has.items() if there)

    def seam(self, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
        """The row of one site.

        Raises:
            Refused: for a kernel that its site does not know, and for a required one that a guard closes.
        """
        name = f"kernels.{site}"
        if wish.kernel not in CHOICES[site]:
            raise refuse(name, wish.kernel, "does not exist for this site", f"use one of {', '.join(CHOICES[site])}")
        closed = self.closed(site, wish.kernel, recipe, mode, facts)
        if not closed:
            return Seam(site=site, requested=wish.kernel, actual=wish.kernel)
        if wish.required:
            raise refuse(name, wish.kernel, "; ".join(closed), "mend what closes it, or do not require it")
        return Seam(site=site, requested=wish.kernel, actual="native", reason="; ".join(closed))

    def closed(self, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts) -> list[str]:
        """Every guard that keeps a kernel from a site."""
        if kernel == "native":
            return []
        if kernel == "torch-grouped":
            return self.closed_to_grouped(recipe, facts)
        found = self.missing(kernel, facts.packages.get(kernel, Package(state="absent")))
        found += self.unfit(kernel, recipe, facts)
        if site == "recurrence":
            found.append("mamba-ssm has no kernel of the M²RNN recurrence")
        if site == "scan" and mode == "author_dp":
            found.append("mamba-ssm's kernel of Mamba-3 turns B and C itself, in bfloat16; the scan here is given both")
        return found

    def missing(self, name: str, package: Package) -> list[str]:
        if package.state == "absent":
            return [f"{name} is not installed"]
        if package.state == "broken":
            return [f"{name} {package.version or '(no version)'} is installed and broken: {package.words}"]
        return []

    def unfit(self, kernel: Kernel, recipe: Recipe, facts: Facts) -> list[str]:
        """The facts of the device that rule a package's kernel out; whether it is installed is another check."""
        if facts.device != "cuda":
            return [f"{kernel} runs on CUDA devices, the device is {facts.device}"]
        variant = kernel if kernel == "mamba-ssm" else _gemm(recipe)
        if variant is None:
            able = _number(facts.capability) >= 80
            return [] if able else [f"{kernel} runs on sm_80 and later, the device is {facts.capability}"]
        guard = catalogue.closed(
            catalogue.rule(variant),
            KernelRequest(variant=variant, device=facts.capability, installed=frozenset({kernel})),
        )
        return [f"{kernel}: {guard}"] if guard else []

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        found = []
        if recipe.fp8 is not None:
            found.append("torch's grouped matmul takes bfloat16, the experts are in fp8")
        elif recipe.dtype != "bf16":
            found.append(f"torch's grouped matmul takes bfloat16, the recipe is {recipe.dtype}")
        assert recipe.moe is not None
        for name, width in (("hidden", recipe.hidden), ("moe.expert_hidden", recipe.moe.expert_hidden)):
            if width % ROW_ALIGNMENT:
                found.append(f"torch's grouped matmul wants rows of 16 bytes, {name} ({width}) is no multiple of 8")
        if facts.device == "cuda" and _number(facts.capability) < 80:
            found.append(f"torch's grouped matmul runs on sm_80 and later, the device is {facts.capability}")
        return found

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        import torch

        from contracts.stacks.reference.model.blocks.fp8 import quantised
        from contracts.stacks.reference.model.init import SkipInit

        parts = self.parts()
        with torch.device("meta"), SkipInit():
            model = parts.model(recipe, mode, parts)
        names = frozenset(quantised(model))
        return tuple(
            Computed(name=row.name, compute="fp8" if row.name in names else cast(Compute, row.compute))
            for row in self.built(recipe, mode).parameters
        )


def _gemm(recipe: Recipe) -> str | None:
    """The catalogue's variant of a matrix product; None for one that it does not guard."""
    if recipe.fp8 is None:
        return None
    return "mxfp8" if recipe.fp8.scaling == "mxfp8" else "fp8"


def _number(capability: str | None) -> int:
    """90 of sm_90; 0 of anything that the driver has never said."""
    found = re.fullmatch(r"sm_(\d+)", capability or "")
    return int(found.group(1)) if found else 0
