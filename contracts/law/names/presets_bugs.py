"""Stacks with one fault: a preset's name does not say what it resolves to."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from contracts.contract import mutant
from contracts.law._bugs.broken import broken
from contracts.spec import Dsa, Mhc, Mla, Moe, Recipe, Refused, refuse
from contracts.stacks.reference.stack import Reference

DENSE = "nam52_h200_dense_ref_v1"
CANDIDATE = "nam52r_h200_4full_9sparse_candidate_v1"


def _renamed(named: str, kill: str, bugs: tuple[str, ...] = ()) -> Callable[[Callable[[Recipe], Recipe]], Any]:
    """Make a mutant of a function: one name resolves to what it makes of the recipe."""

    def enter(wrong: Callable[[Recipe], Recipe]) -> Any:
        @functools.wraps(wrong)
        def instead(preset: Any, self: Any, name: str, acknowledge: tuple[str, ...]) -> Recipe:
            recipe: Recipe = preset(self, name, acknowledge)
            return wrong(recipe) if name == named else recipe

        return broken(Reference, "preset", kill, bugs=bugs)(instead)

    return enter


@_renamed("nam52_h200_moe_no_dsa_ref_v1", "NAME-01[moe-no-dsa]: differ in mhc", bugs=("PRV-04",))
def alias_without_streams(recipe):
    """The alias is a copy of its preset's fields instead of a reference to it, and lacks the residual streams."""
    return replace(recipe, mhc=None)


@_renamed("nam52r_h200_prod_candidate_v1", "NAME-01[prod-candidate]: differ in degrees", bugs=("PRV-04",))
def alias_follows_production(recipe):
    """The production alias follows what production runs, so two reports under it mean two lanes."""
    return replace(recipe, degrees=replace(recipe.degrees, ep=8))


@_renamed(DENSE, "NAME-02[reference]: has MoE off", bugs=("PRV-04",))
def dense_means_no_experts(recipe):
    """`dense` means no experts, as elsewhere in the field. That is another model of the same depth."""
    return replace(recipe, moe=None)


@_renamed("nam52_h200_moe_no_dsa_ref_v1", "NAME-02[alias]: has 2 mHC streams, expected 4", bugs=("PRV-04",))
def dense_with_two_streams(recipe):
    """Over-correction: the number of streams is halved to fit, under the name of the baseline with four."""
    return replace(recipe, mhc=Mhc(streams=2))


@mutant(of="NAME-02a", case="every-name", says="says dense and has DSA on A-ranks (8, 9, 10, 11)", bugs=("PRV-04",))
class OffersTheOldDenseKey(Reference):
    """The historical key, dense by name and sparse on four A-ranks, is among the listed presets."""

    def preset_names(self) -> tuple[str, ...]:
        return (*super().preset_names(), "nam52_h200_dense_pinned_v1")

    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        return super().preset(name, ("nam52_h200_dense_pinned_v1",))


@_renamed("nam52_h200_dense_no_mhc_recovery_v1", "NAME-03[nam52]: differ in mhc, optim, not in mhc", bugs=("PRV-04",))
def recovers_with_another_rate(recipe):
    """The recovery preset also halves the learning rate, so a bisection by it blames mHC for both."""
    return replace(recipe, optim=replace(recipe.optim, lr=recipe.optim.lr / 2))


@_renamed("nam52_h200_dense_no_mhc_recovery_v1", "NAME-03[nam52]: has mHC on", bugs=("PRV-04",))
def recovers_nothing(recipe):
    """The recovery preset is a copy of its reference under another name."""
    return replace(recipe, mhc=Mhc(streams=1))


@_renamed(CANDIDATE, "NAME-04[full]: says full: expected 4, it is 9", bugs=("HYB-09", "PRV-04"))
def inverts_the_mix(recipe):
    """4full_9sparse gets the A-ranks of the pinned preset: nine full and four sparse."""
    return replace(recipe, dsa=Dsa(a_ranks=(8, 9, 10, 11)))


@_renamed("nam52_h200_moe_no_dsa_ref_v1", "NAME-04[no_dsa]: says no_dsa: expected True, it is False", bugs=("PRV-04",))
def sparse_under_no_dsa(recipe):
    """A preset named no_dsa has sparse attention on one rank, left over from an experiment."""
    return replace(recipe, mla=Mla(), dsa=Dsa(a_ranks=(8,)))


@_renamed("nam56r_h200_fp8_v1", "NAME-04[fp8]: says fp8: expected True, it is False", bugs=("PRV-04",))
def eight_bits_in_name_only(recipe):
    """The fp8 preset runs bf16, and its figure is quoted as the gain of FP8."""
    return replace(recipe, fp8=None)


@_renamed(CANDIDATE, "NAME-04a[nam52r]: is sparse on A-ranks (0, 1, 2, 4, 5, 6, 8, 9, 10)", bugs=("HYB-09",))
def counts_a_ranks_from_one(recipe):
    """Nine sparse and four full A-ranks, each one too early: the list was written for ranks that count from 1."""
    return replace(recipe, dsa=Dsa(a_ranks=(0, 1, 2, 4, 5, 6, 8, 9, 10)))


@broken(Reference, "preset", "NAME-06[other-version]: was accepted, expected a refusal")
def falls_back_to_the_family(preset, self, name, acknowledge):
    """An unknown name resolves to the family's first preset: the requested version never runs."""
    try:
        return preset(self, name, acknowledge)
    except Refused:
        if name.startswith("nam56r"):
            return preset(self, "nam56r_h200_bf16_v1", acknowledge)
        raise


@broken(Reference, "preset", "NAME-06[slip-in-an-alias]: does not name nam52r_h200_prod_candidate_v1")
def suggests_presets_alone(preset, self, name, acknowledge):
    """The refusal suggests only presets, so a misspelt alias gets the wrong suggestion."""
    try:
        return preset(self, name, acknowledge)
    except Refused:
        raise refuse("preset", name, "is not a preset", f"the nearest is {CANDIDATE}") from None


@broken(Reference, "preset", "NAME-06a[empty]: was accepted, expected a refusal")
def resolves_the_empty_name(preset, self, name, acknowledge):
    """An unset variable reaches the resolver as an empty name, which is a prefix of every name."""
    found = [known for known in self.preset_names() if known.startswith(name)]
    return preset(self, found[0] if found else name, acknowledge)


@broken(Reference, "preset", "NAME-06b[nam52-pinned]: was accepted, expected a refusal", bugs=("PRV-04",))
def warns_instead(preset, self, name, acknowledge):
    """A deprecated name resolves with only a warning."""
    return preset(self, name, (*acknowledge, name))


@broken(Reference, "preset", "NAME-06b[nam52r-candidate]: was accepted, expected a refusal", bugs=("PRV-04",))
def takes_any_acknowledgement(preset, self, name, acknowledge):
    """Over-correction: an acknowledgement of any name opens all deprecated names."""
    return preset(self, name, (*acknowledge, name) if acknowledge else ())


@broken(Reference, "preset", "NAME-07[current]: was accepted, expected a refusal", bugs=("PRV-05",))
def resolves_current(preset, self, name, acknowledge):
    """`current` resolves to the baseline of this wave; in the next wave the same command runs another model."""
    return preset(self, "nam56r_h200_bf16_v1" if name == "current" else name, acknowledge)


@broken(Reference, "preset", "NAME-07[lineage]: is identified by the label v19c", bugs=("PRV-05",))
def family_is_a_lineage(preset, self, name, acknowledge):
    """The preset family that a comparison reads is the tag of a wave of runs."""
    return replace(preset(self, name, acknowledge), family="v19c")


@broken(Reference, "preset", "NAME-07[head]: was accepted, expected a refusal", bugs=("PRV-05",))
def acknowledges_a_label(preset, self, name, acknowledge):
    """A label is treated as a deprecated name: acknowledging it gives whatever it means today."""
    return preset(self, DENSE if name == "head" and name in acknowledge else name, acknowledge)


@_renamed("nam56r_h200_fp8_v1", "NAME-08[h200]: declares 80 GB of HBM, expected 81 … 141", bugs=("PRV-26",))
def fits_everywhere(recipe):
    """A preset planned for the H200 claims to fit the smaller Hopper card, without a receipt for it."""
    return replace(recipe, hbm_gb=80)


@_renamed(DENSE, "NAME-08[h200]: declares 192 GB of HBM")
def asks_more_than_its_card(recipe):
    """Over-correction: a margin makes the preset too large for the card in its name."""
    return replace(recipe, hbm_gb=192, moe=Moe())
