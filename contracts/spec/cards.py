"""GPUs and their usable bytes, and whether a need fits one: what a plan can say, and what only a measurement proves."""

import re

from contracts.spec.capacity import Card, Fit, FitWord, Measured
from contracts.spec.errors import Refusals, refuse

# The data sheets' figures read as decimal gigabytes. Drivers report more (143 771 MiB = 150.8 GB on an H200, 81 559 MiB
# = 85.5 GB on an H100), of which the context takes its share: the decimal reading keeps about 6 % in hand on both.
CARDS = {
    "h200": Card(name="h200", usable_bytes=141_000_000_000),
    "h100": Card(name="h100", usable_bytes=80_000_000_000),
}
DEVICES = {
    "a100": "sm_80", "ampere": "sm_80", "h100": "sm_90", "h200": "sm_90", "hopper": "sm_90", "b200": "sm_100",
    "gb10": "sm_121",
}  # fmt: skip
"""Cards and architectures → what the driver calls the device. Blackwell is several."""
REFUSED_ABOVE = 95  # per cent of the usable bytes
WARNED_ABOVE = 90  # less than 10 % of headroom
SETTLED_STEP = 100  # allocations may still grow before it, so a peak measured earlier proves no fit


def card(name: str) -> Card:
    """The card with a name.

    Raises:
        Refused: for a name that is not a card; a host or a box is not one.
    """
    if name not in CARDS:
        raise refuse("card", name, "is not a card", f"use one of {', '.join(CARDS)}, or the GiB that a process may use")
    return CARDS[name]


def device(name: str) -> str:
    """What the driver calls a device: `sm_90` of `sm_90`, `sm90`, `h200` or `hopper`.

    Raises:
        Refused: for what names no device, such as a host or a family of several.
    """
    plain = name.strip().lower()
    number = re.fullmatch(r"sm_?(\d{2,3}[a-z]?)", plain)
    if number is None and plain not in DEVICES:
        raise refuse("device", name, "is not a device", f"write sm_NN as the driver does, or {', '.join(DEVICES)}")
    return DEVICES[plain] if number is None else f"sm_{number[1]}"


def word(needed_bytes: int, card: Card) -> FitWord:
    """Above 95 % of the usable bytes a need is too large, above 90 % it is tight. Integer arithmetic, no rounding."""
    if needed_bytes * 100 > card.usable_bytes * REFUSED_ABOVE:
        return "too large"
    return "tight" if needed_bytes * 100 > card.usable_bytes * WARNED_ABOVE else "fits"


def fit(needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
    """Whether a need fits a card. Only a receipt of a settled run on that card proves it. A measured peak overrides a
    smaller plan.

    Raises:
        Refused: for sizes that are not positive.
    """
    found = Refusals()
    positive("needed_bytes", needed_bytes, found)
    positive("usable_bytes", card.usable_bytes, found)
    found.raise_any()
    if measured is None:
        return Fit(word=word(needed_bytes, card), proved=False, reason="planned, not measured")
    if measured.card != card.name:
        reason = f"measured on {measured.card}, which says nothing of {card.name}"
        return Fit(word=word(needed_bytes, card), proved=False, reason=reason)
    peak = max(measured.reserved_bytes, measured.allocated_bytes)
    verdict = word(max(needed_bytes, peak), card)
    if not measured.receipt:
        return Fit(word=verdict, proved=False, reason=f"a peak of {peak} bytes without a receipt")
    if measured.step < SETTLED_STEP:
        reason = f"{measured.receipt} ended at step {measured.step}, before step {SETTLED_STEP}"
        return Fit(word=verdict, proved=False, reason=reason)
    return Fit(word=verdict, proved=True, reason=f"{measured.receipt}: {peak} bytes at step {measured.step}")


def positive(name: str, value: int, found: Refusals) -> None:
    """Record a refusal of a size that is not positive."""
    found.unless(value > 0, name, value, "must be positive", "give bytes, not a label")
