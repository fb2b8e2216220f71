"""Stacks whose budget hides a part, misreads a card's bytes, or takes a plan for proof."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.capacity import Budget, Card, Fit, FitWord, Measured, Spread
from contracts.spec.errors import Refused
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.stack import Reference


@mutant(of="MEM-02", case="own-axis-tp2-ep3", says="does not name communication")
class HidesCommunication(Reference):
    """The budget has no line for gathered blocks and buckets: they are "part of the framework"."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        budget = super().budget(recipe, spread, card)
        stages = tuple(
            replace(stage, lines=tuple(line for line in stage.lines if line.part != "communication"))
            for stage in budget.stages
        )
        return replace(budget, stages=stages)


@mutant(of="MEM-02", case="own-axis-pp3-ep2", says="the budget is")
class AveragesTheStages(Reference):
    """The sum over stages is divided by their number: no card holds an average stage."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        budget = super().budget(recipe, spread, card)
        mean = sum(stage.total_bytes for stage in budget.stages) // len(budget.stages)
        return replace(budget, total_bytes=mean)


@mutant(of="MEM-02", case="own-axis-mhc-mtp", says="the lines add up to")
class LeavesTheReserveOutOfTheTotal(Reference):
    """The reserve is printed and not added."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        budget = super().budget(recipe, spread, card)
        stages = tuple(
            replace(stage, total_bytes=sum(line.bytes for line in stage.lines if line.part != "reserve"))
            for stage in budget.stages
        )
        return replace(budget, stages=stages, total_bytes=max(stage.total_bytes for stage in stages))


@mutant(of="MEM-02", case="borrowed-pp2-tp2-ep2", says="the stages own")
class CutsTheDepthEvenly(Reference):
    """The budget has equal stages where the pattern writes out unequal ones."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        budget = super().budget(recipe, spread, card)
        letters = recipe.pattern.replace("|", "")
        size = -(-recipe.depth // spread.degrees.pp)
        stages = tuple(
            replace(stage, letters=letters[stage.stage * size : (stage.stage + 1) * size]) for stage in budget.stages
        )
        return replace(budget, stages=stages)


@mutant(of="MEM-02", case="borrowed-dense", says="is called 'fits', expected 'too large'")
class AlwaysFits(Reference):
    """The budget is printed, and every plan is said to fit."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return replace(super().budget(recipe, spread, card), fit="fits")


@mutant(of="MEM-02i", case="h200-95-per-cent", says="is called 'too large', expected 'tight'")
class RefusesTheLimitItself(Reference):
    """`>=` where the rule says "more than"."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        return super().fit(needed_bytes + 1, card, measured)


@mutant(of="MEM-02i", case="h100-a-byte-more-than-76-gb", says="is called 'tight', expected 'too large'")
class RoundsToWholePerCent(Reference):
    """Rounded percentages are compared: 95.9 % is 95."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        answer = super().fit(needed_bytes, card, measured)
        cent = needed_bytes * 100 // card.usable_bytes
        word: FitWord = "too large" if cent > 95 else "tight" if cent > 90 else "fits"
        return replace(answer, word=word)


@mutant(of="MEM-02i", case="h100-78-gb", says="78000000000 of 80000000000 bytes is called 'fits'")
class JudgesEveryCardAsAnH200(Reference):
    """The machine at hand has an H200, and so has every card in the code."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        return super().fit(needed_bytes, replace(card, usable_bytes=141_000_000_000), measured)


@mutant(of="MEM-02j", case="h200", says="h200 has 151397597184 usable bytes")
class ReadsGigabytesAsGibibytes(Reference):
    """141 · 2³⁰: 10 GB that the card does not have."""

    def card(self, name: str) -> Card:
        card = super().card(name)
        return replace(card, usable_bytes=card.usable_bytes // 10**9 * 2**30)


@mutant(of="MEM-02j", case="h100", says="h100 has 69")
class ConvertsTwice(Reference):
    """Over-correction: GB become GiB in the table, and again where the table is read."""

    def card(self, name: str) -> Card:
        card = super().card(name)
        return replace(card, usable_bytes=card.usable_bytes * 10**18 // 2**60)


@mutant(of="MEM-02k", case="not-built", says="was accepted, expected a refusal")
class FallsBackToTheH200(Reference):
    """An unknown card gets the bytes of an H200."""

    def card(self, name: str) -> Card:
        try:
            return super().card(name)
        except Refused:
            return super().card("h200")


@mutant(of="MEM-02l", case="no-measurement", says="proved is True, expected False", bugs=("PRV-26",))
class TakesTheCardsNameForProof(Reference):
    """A plan for an H200 counts as proved because the recipe is known to run there."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        answer = super().fit(needed_bytes, card, measured)
        return replace(answer, proved=answer.proved or card.name == "h200")


@mutant(of="MEM-02l", case="measured-on-another-card", says="proved is True, expected False", bugs=("PRV-26",))
class CarriesTheMeasurementOver(Reference):
    """A run on an H200 proves the fit on every card."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        answer = super().fit(needed_bytes, card, measured)
        return replace(answer, proved=measured is not None and bool(measured.receipt))


@mutant(of="MEM-02l", case="measured-at-step-2", says="proved is True, expected False")
class TrustsTheSecondStep(Reference):
    """Any peak counts: a smoke test of two steps proves the fit of a month."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        settled = None if measured is None else replace(measured, step=1000)
        return super().fit(needed_bytes, card, settled)


@mutant(of="MEM-02l", case="measured-beyond-the-plan", says="is called 'fits', expected 'too large'")
class BelievesThePlan(Reference):
    """The plan's number stays although the run took 38 GB more."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        answer = super().fit(needed_bytes, card, measured)
        return replace(answer, word=super().fit(needed_bytes, card, None).word)


@mutant(of="MEM-02l", case="measured", says="proved is False, expected True")
class ProvesNothing(Reference):
    """Over-correction: no receipt is ever good enough, so nobody writes one."""

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        return replace(super().fit(needed_bytes, card, measured), proved=False)
