"""Which contracts failed the self-test, and why. Such a contract is unfit: its cases are not run, all others are."""

from collections.abc import Iterable, Mapping

from contracts.spec.records import Fate, Kill, Result

MISSED: Mapping[Fate, str] = {
    "survived": "survived",
    "wrong words": "was caught with other words",
    "crashed": "crashed",
}
"""The fates that show a contract to be blind. A void mutant could not be asked, which shows nothing."""
TOLD = 3  # reasons for each contract: a broken one fails in every case, and a person reads the report


def unfit(baseline: Iterable[Result], kills: Iterable[Kill], unguarded: Iterable[str]) -> Mapping[str, str]:
    """Id → reason, of each contract that fails on the reference, misses one of its mutants, or has none.

    A case that could not be run here, on the reference or on a mutant, is no reason: it stays *not run*.
    """
    reasons: dict[str, list[str]] = {}
    for result in baseline:
        if result.outcome in ("violated", "broken"):
            words = f"on the reference {result.item} is {result.outcome}: {result.words}"
            reasons.setdefault(result.id, []).append(words)
    for kill in kills:
        if kill.fate in MISSED:
            words = f"its mutant {kill.mutant} in {kill.case} {MISSED[kill.fate]}: {kill.words}"
            reasons.setdefault(kill.of, []).append(words)
    for id in unguarded:
        reasons.setdefault(id, []).append(
            "it has no mutant, or none on its leanest recipes, so nothing shows that it can fail"
        )
    return {id: _joined(each) for id, each in reasons.items()}


def _joined(reasons: list[str]) -> str:
    more = [f"and {len(reasons) - TOLD} more"] if len(reasons) > TOLD else []
    return "\n".join([*reasons[:TOLD], *more])
