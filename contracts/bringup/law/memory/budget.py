"""Whether a plan fits a card: the parts of a budget, the bytes of a card, thresholds, and what counts as proof."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.law._support.layouts import needs_layout
from contracts.law._support.small_model import ROOMY, SMALL, bytes_of
from contracts.spec import Degrees, Mhc, Mtp, Recipe
from contracts.spec.capacity import Capacity, Card, Measured, Spread

SEVEN = ("weights", "gradients", "optimizer", "activations", "routing", "communication", "reserve")

_WIDE = replace(SMALL, depth=6)
NAMED = {  # recipe, plan → the letters of each stage, in model order
    "own-axis-tp2-ep3": (
        SMALL,
        Spread(degrees=Degrees(tp=2, ep=3, etp=1, sp=True), world=12, layout="own-axis"),
        "AEMAE",
    ),
    "own-axis-mhc-mtp": (
        replace(SMALL, mhc=Mhc(streams=4), mtp=Mtp(depth=2)),
        Spread(degrees=Degrees(ep=2), world=6, layout="own-axis", sharding="optimizer"),
        "AEMAE",
    ),
    "own-axis-pp3-ep2": (_WIDE, Spread(degrees=Degrees(pp=3, ep=2), world=12, layout="own-axis"), "AE MA EM"),
    "borrowed-pp2-tp2-ep2": (
        replace(SMALL, pattern="A|EMAE"),
        Spread(degrees=Degrees(pp=2, tp=2, ep=2, etp=1), world=8, layout="borrowed"),
        "A EMAE",
    ),
    "borrowed-dense": (replace(SMALL, moe=None), Spread(degrees=Degrees(cp=2), world=6, layout="borrowed"), "AEMAE"),
}


@contract("MEM-02", asks="budget", cases=NAMED, source="hub: memory budget anatomy; playbook")
def a_budget_names_its_parts(stack: Capacity, recipe: Recipe, spread: Spread, letters: str) -> None:
    """A budget lists weights, gradients, optimizer, activations, routing buffers, communication and reserve for each
    pipeline stage, with the arithmetic of each line; lines add up to the stage, and the heaviest stage is the total.

    "It should fit" is said of weights and heard as said of everything. With named parts, a lane that does not fit shows
    which part to change, and the same budget answers for 141 GB and for 80.
    """
    needs_layout(stack, spread.layout)
    budget = stack.budget(recipe, spread, ROOMY)
    owned = " ".join(stage.letters for stage in budget.stages)
    assert owned == letters, f"the stages own {owned!r}, expected {letters!r}"
    for stage in budget.stages:
        where = f"stage {stage.stage} ({stage.letters})"
        missing = set(SEVEN) - {line.part for line in stage.lines}
        assert not missing, f"{where} does not name {', '.join(sorted(missing))}"
        for line in stage.lines:
            assert line.bytes >= 0, f"{where}: {line.part} ({line.what}) is {line.bytes} bytes"
            told = any(character.isdigit() for character in line.formula)
            assert told, f"{where}: {line.part} ({line.what}) shows no arithmetic, only {line.formula!r}"
        for part in set(SEVEN) - {"routing", "communication"}:
            assert bytes_of(stage, part) > 0, f"{where}: {part} takes no bytes"
        routes = recipe.moe is not None and "E" in stage.letters
        routing = bytes_of(stage, "routing")
        assert (routing > 0) == routes, f"{where}: routing takes {routing} bytes, experts here: {routes}"
        added = sum(line.bytes for line in stage.lines)
        assert stage.total_bytes == added, f"{where}: total is {stage.total_bytes}, the lines add up to {added}"
    totals = [stage.total_bytes for stage in budget.stages]
    assert budget.total_bytes == max(totals), f"the budget is {budget.total_bytes}, its stages are {totals}"
    assert totals[budget.heaviest] == max(totals), f"stage {budget.heaviest} is called the heaviest of {totals}"
    for usable, word in ((budget.total_bytes * 2, "fits"), (budget.total_bytes, "too large")):
        again = stack.budget(recipe, spread, Card(name="made to measure", usable_bytes=usable))
        assert again.total_bytes == budget.total_bytes, f"the need changes with the card: {again.total_bytes}"
        assert again.fit == word, f"{again.total_bytes} of {usable} bytes is called {again.fit!r}, expected {word!r}"


H200 = Card(name="h200", usable_bytes=141_000_000_000)
H100 = Card(name="h100", usable_bytes=80_000_000_000)
_ODD = Card(name="odd", usable_bytes=999)  # 95 % is 949.05, 90 % is 899.1
THRESHOLDS = {
    "h200-90-per-cent": (126_900_000_000, H200, "fits"),
    "h200-a-byte-more-than-90": (126_900_000_001, H200, "tight"),
    "h200-95-per-cent": (133_950_000_000, H200, "tight"),
    "h200-a-byte-more-than-95": (133_950_000_001, H200, "too large"),
    "h100-76-gb": (76_000_000_000, H100, "tight"),
    "h100-a-byte-more-than-76-gb": (76_000_000_001, H100, "too large"),
    # a plan that leaves an H200 half empty: "runs on H200" is no statement about 80 GB
    "h200-70-gb": (78_000_000_000, H200, "fits"),
    "h100-78-gb": (78_000_000_000, H100, "too large"),
    "odd-899": (899, _ODD, "fits"),
    "odd-900": (900, _ODD, "tight"),
    "odd-949": (949, _ODD, "tight"),
    "odd-950": (950, _ODD, "too large"),
}


@contract("MEM-02i", asks="fit", cases=THRESHOLDS, source="hub: memory budget anatomy")
def more_than_95_per_cent_is_refused(stack: Capacity, needed: int, card: Card, expected: str) -> None:
    """A plan above 95 % of a card's usable bytes is too large; above 90 % it is tight.

    Good estimates drift by 5 %, and the allocator needs spare room. A plan of 99 % runs out of memory at the first long
    batch.
    """
    word = stack.fit(needed, card, None).word
    assert word == expected, f"{needed} of {card.usable_bytes} bytes is called {word!r}, expected {expected!r}"


# From 90 % of the data sheet's decimal figure to what the driver reports (143 771 MiB on an H200, 81 559 MiB on an
# H100), all of which a process never gets. 141 GiB and 80 GiB are more than the cards have.
CARDS = {
    "h200": ("h200", 126_900_000_000, 150_754_820_096),
    "h100": ("h100", 72_000_000_000, 85_520_809_984),
}


@contract("MEM-02j", asks="card", cases=CARDS, source="playbook: 141 GB against 80 GB; NVIDIA's data sheets")
def a_card_has_the_bytes_that_its_driver_reports(stack: Capacity, name: str, low: int, high: int) -> None:
    """A card's usable bytes lie between its data sheet's decimal gigabytes, less a reserve, and the driver's figure.

    The data sheet counts GB, the allocator GiB. 141 read as GiB plans with 151.4 GB, more than the card has.
    """
    usable = stack.card(name).usable_bytes
    assert low <= usable <= high, f"{name} has {usable} usable bytes, expected {low} … {high}"


NO_CARDS = {
    "a-box": ("the H200",),
    "not-built": ("h900",),
    "empty": ("",),
}


@contract("MEM-02k", asks="card", cases=NO_CARDS, source="bringup: hosts and cards")
def an_unknown_card_has_no_bytes(stack: Capacity, name: str) -> None:
    """An unknown card name is refused; no default card stands in for it."""
    refused = refusal_of(stack.card, name)
    assert name in str(refused), f"the refusal does not name {name!r}: {refused}"


_RUN = Measured(
    receipt="run-0042", card="h200", step=400, allocated_bytes=100_000_000_000, reserved_bytes=104_000_000_000
)
CLAIMS: dict[str, tuple[int, Card, Measured | None, bool, str]] = {
    "no-measurement": (98_000_000_000, H200, None, False, "fits"),
    "measured": (98_000_000_000, H200, _RUN, True, "fits"),
    "no-receipt": (98_000_000_000, H200, replace(_RUN, receipt=""), False, "fits"),
    "measured-on-another-card": (60_000_000_000, H100, _RUN, False, "fits"),
    "measured-at-step-2": (98_000_000_000, H200, replace(_RUN, step=2), False, "fits"),
    "planned-over-a-measured-fit": (140_000_000_000, H200, _RUN, True, "too large"),
    # the run took more than planned: the plan is wrong, not the run
    "measured-beyond-the-plan": (
        98_000_000_000,
        H200,
        replace(_RUN, allocated_bytes=136_000_000_000, reserved_bytes=138_000_000_000),
        True,
        "too large",
    ),
}


@contract("MEM-02l", asks="fit", cases=CLAIMS, source="naming: a lane's name proves no fit; bringup")
def only_a_measured_receipt_proves_a_fit(
    stack: Capacity, needed: int, card: Card, measured: Measured | None, proved: bool, word: str
) -> None:
    """Only a receipt with a peak measured on that card, after the first hundred steps, proves that a recipe fits; a
    plan, a lane's name or a run on another card does not. A measured peak above the plan replaces the plan.

    "Works on our H200 box" says nothing to a reader with 80 GB. A lane's name says which sharding it uses, and was read
    as proof that it fits. By step 2 the allocator has not reached its peak.
    """
    claim = stack.fit(needed, card, measured)
    assert claim.proved == proved, f"proved is {claim.proved}, expected {proved}: {claim.reason}"
    assert claim.word == word, f"{needed} bytes on {card.name} is called {claim.word!r}, expected {word!r}"
    assert claim.reason, "the claim gives no reason"
