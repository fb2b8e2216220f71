"""Stacks whose budget hides a part, misreads a card's bytes, or takes a plan for proof."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Refused
from contracts.stacks.reference.stack import Reference


@broken(Reference, "budget", "MEM-02[own-axis-tp2-ep3]: does not name communication")
def hides_communication(former, self, recipe, spread, card):
    """The budget has no line for gathered blocks and buckets: they are "part of the framework"."""
    budget = former(self, recipe, spread, card)
    stages = tuple(
        replace(stage, lines=tuple(line for line in stage.lines if line.part != "communication"))
        for stage in budget.stages
    )
    return replace(budget, stages=stages)


@broken(Reference, "budget", "MEM-02[own-axis-pp3-ep2]: the budget is")
def averages_the_stages(former, self, recipe, spread, card):
    """The sum over stages is divided by their number: no card holds an average stage."""
    budget = former(self, recipe, spread, card)
    mean = sum(stage.total_bytes for stage in budget.stages) // len(budget.stages)
    return replace(budget, total_bytes=mean)


@broken(Reference, "budget", "MEM-02[own-axis-mhc-mtp]: the lines add up to")
def leaves_the_reserve_out_of_the_total(former, self, recipe, spread, card):
    """The reserve is printed and not added."""
    budget = former(self, recipe, spread, card)
    stages = tuple(
        replace(stage, total_bytes=sum(line.bytes for line in stage.lines if line.part != "reserve"))
        for stage in budget.stages
    )
    return replace(budget, stages=stages, total_bytes=max(stage.total_bytes for stage in stages))


@broken(Reference, "budget", "MEM-02[borrowed-pp2-tp2-ep2]: the stages own")
def cuts_the_depth_evenly(former, self, recipe, spread, card):
    """The budget has equal stages where the pattern writes out unequal ones."""
    budget = former(self, recipe, spread, card)
    letters = recipe.pattern.replace("|", "")
    size = -(-recipe.depth // spread.degrees.pp)
    stages = tuple(
        replace(stage, letters=letters[stage.stage * size : (stage.stage + 1) * size]) for stage in budget.stages
    )
    return replace(budget, stages=stages)


@broken(Reference, "budget", "MEM-02[borrowed-dense]: is called 'fits', expected 'too large'")
def always_fits(budget, self, recipe, spread, card):
    """The budget is printed, and every plan is said to fit."""
    return replace(budget(self, recipe, spread, card), fit="fits")


@broken(Reference, "fit", "MEM-02i[h200-95-per-cent]: is called 'too large', expected 'tight'")
def refuses_the_limit_itself(fit, self, needed_bytes, card, measured):
    """`>=` where the rule says "more than"."""
    return fit(self, needed_bytes + 1, card, measured)


@broken(Reference, "fit", "MEM-02i[h100-a-byte-more-than-76-gb]: is called 'tight', expected 'too large'")
def rounds_to_whole_per_cent(fit, self, needed_bytes, card, measured):
    """Rounded percentages are compared: 95.9 % is 95."""
    answer = fit(self, needed_bytes, card, measured)
    cent = needed_bytes * 100 // card.usable_bytes
    word = "too large" if cent > 95 else "tight" if cent > 90 else "fits"
    return replace(answer, word=word)


@broken(Reference, "fit", "MEM-02i[h100-78-gb]: 78000000000 of 80000000000 bytes is called 'fits'")
def judges_every_card_as_an_h200(fit, self, needed_bytes, card, measured):
    """The machine at hand has an H200, and so has every card in the code."""
    return fit(self, needed_bytes, replace(card, usable_bytes=141_000_000_000), measured)


@broken(Reference, "card", "MEM-02j[h200]: h200 has 151397597184 usable bytes")
def reads_gigabytes_as_gibibytes(former, self, name):
    """141 · 2³⁰: 10 GB that the card does not have."""
    card = former(self, name)
    return replace(card, usable_bytes=card.usable_bytes // 10**9 * 2**30)


@broken(Reference, "card", "MEM-02j[h100]: h100 has 69")
def converts_twice(former, self, name):
    """Over-correction: GB become GiB in the table, and again where the table is read."""
    card = former(self, name)
    return replace(card, usable_bytes=card.usable_bytes * 10**18 // 2**60)


@broken(Reference, "card", "MEM-02k[not-built]: was accepted, expected a refusal")
def falls_back_to_the_h200(card, self, name):
    """An unknown card gets the bytes of an H200."""
    try:
        return card(self, name)
    except Refused:
        return card(self, "h200")


@broken(Reference, "fit", "MEM-02l[no-measurement]: proved is True, expected False", bugs=("PRV-26",))
def takes_the_cards_name_for_proof(fit, self, needed_bytes, card, measured):
    """A plan for an H200 counts as proved because the recipe is known to run there."""
    answer = fit(self, needed_bytes, card, measured)
    return replace(answer, proved=answer.proved or card.name == "h200")


@broken(Reference, "fit", "MEM-02l[measured-on-another-card]: proved is True, expected False", bugs=("PRV-26",))
def carries_the_measurement_over(fit, self, needed_bytes, card, measured):
    """A run on an H200 proves the fit on every card."""
    answer = fit(self, needed_bytes, card, measured)
    return replace(answer, proved=measured is not None and bool(measured.receipt))


@broken(Reference, "fit", "MEM-02l[measured-at-step-2]: proved is True, expected False")
def trusts_the_second_step(fit, self, needed_bytes, card, measured):
    """Any peak counts: a smoke test of two steps proves the fit of a month."""
    settled = None if measured is None else replace(measured, step=1000)
    return fit(self, needed_bytes, card, settled)


@broken(Reference, "fit", "MEM-02l[measured-beyond-the-plan]: is called 'fits', expected 'too large'")
def believes_the_plan(fit, self, needed_bytes, card, measured):
    """The plan's number stays although the run took 38 GB more."""
    answer = fit(self, needed_bytes, card, measured)
    return replace(answer, word=fit(self, needed_bytes, card, None).word)


@broken(Reference, "fit", "MEM-02l[measured]: proved is False, expected True")
def proves_nothing(fit, self, needed_bytes, card, measured):
    """Over-correction: no receipt is ever good enough, so nobody writes one."""
    return replace(fit(self, needed_bytes, card, measured), proved=False)
