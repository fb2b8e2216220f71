"""GATE: the suite itself. A gate that cannot say no is worse than none, because people believe it.

These contracts judge the gate's verdict code, the court: each case is a small recorded run with its correct verdict,
worked out by hand. `docs/gate.md` has the dated incidents behind the cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from contracts.checks._support.refusals import refusal_of
from contracts.checks.gate._recorded_run import TODAY, UNTESTED, A, B, declared, recorded
from contracts.contract import contract
from contracts.spec.abilities import Abilities, Absence
from contracts.spec.records import (
    SCHEMA,
    Fate,
    Kill,
    Result,
    Run,
    Word,
)
from contracts.spec.stack import Court

VERDICTS: dict[str, tuple[Run, Word, int]] = {
    "all-hold": (recorded((A, "holds"), (B, "holds")), "conformant", 0),
    "one-violated": (recorded((A, "holds"), (B, "violated")), "violated", 1),
    "violated-and-broken": (recorded((A, "broken"), (B, "violated")), "violated", 1),
    "one-broken": (recorded((A, "holds"), (B, "broken")), "broken", 4),
    "broken-and-not-run": (recorded((A, "not run"), (B, "broken")), "broken", 4),
    "one-not-run": (recorded((A, "holds"), (B, "not run")), "incomplete", 3),
    "one-untested": (recorded((A, "holds"), (UNTESTED, "untested")), "incomplete", 3),
    "one-not-offered": (recorded((A, "holds"), (B, "not offered")), "conformant", 0),
    "nothing-planned": (recorded(), "nothing ran", 5),
    "nothing-offered": (recorded((A, "not offered"), offers=frozenset()), "nothing ran", 5),
    "all-skipped": (recorded((A, "not run"), (B, "not run")), "incomplete", 3),
    "only-untested": (recorded((UNTESTED, "untested")), "incomplete", 3),
}


@contract("GATE-01", asks="verdict", cases=VERDICTS, source="law: GATE-01")
def only_what_was_judged_and_held_is_a_pass(court: Court, run: Run, word: Word, exit_code: int) -> None:
    """A run in which nothing ran, a tier is missing, a test was skipped or a contract is untested is not a pass, and
    its exit code says so.

    Conformance gates of large projects have read "did not run" as green: a pytest exit 5 mapped to 0, a GPU tier
    skipped whole, six of eight scenarios skipped with a green badge, `all([])`. The verdict is conformant, violated,
    incomplete, broken or nothing ran, and each has its own exit code.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
    assert judged.exit_code == exit_code, f"exit code is {judged.exit_code}, expected {exit_code} for {word}"


PLANS: dict[str, tuple[Run, Word, str]] = {
    "one-absent": (recorded((A, "holds"), plan=(A, B)), "incomplete", "no result came"),
    "not-planned": (recorded((A, "holds"), (B, "holds"), plan=(A,)), "broken", "TOPO-02[pp2-ep2]"),
    "came-twice": (recorded((A, "holds"), (A, "violated"), (B, "holds"), plan=(A, B)), "violated", "2 results"),
    "held-twice": (recorded((A, "holds"), (A, "holds"), (B, "holds"), plan=(A, B)), "broken", "2 results"),
    "planned-twice": (recorded((A, "holds"), plan=(A, A)), "broken", "planned 2 times"),
}


@contract("GATE-02", asks="verdict", cases=PLANS, source="law: GATE-02")
def what_was_planned_must_come(court: Court, run: Run, word: Word, words: str) -> None:
    """The plan, ids × cases, is written before anything runs. A planned item without a result is red, and so is a
    result that was not planned.

    A plan computed from the collected tests shrinks with them: deselect a test, rename a folder or lose a worker, and
    the smaller plan is fulfilled. OCI's runner and array-api-tests both shipped that.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
    said = [*(fault.words for fault in judged.faults), *(result.words for result in judged.results)]
    assert any(words in each for each in said), f"no message says {words!r}; messages: {said}"


def _cut_last_line(text: str) -> str:
    return "\n".join(text.splitlines()[:-1]) + "\n"


def _cut_mid_line(text: str) -> str:
    return text[:-9]


def _drop_one_result(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(line for line in lines if '"pp2-ep2","outcome"' not in line) + "\n"


def _shrink_plan(text: str) -> str:
    return text.replace('{"id":"TOPO-02","case":"pp2-ep2"}', '{"id":"TOPO-02","case":"pp2-tp2"}', 1)


def _edit_outcome(text: str) -> str:
    return text.replace('"outcome":"violated"', '"outcome":"deviates"', 1)


def _edit_the_footer(text: str) -> str:
    return text.replace('"word":"conformant","exit_code":0', '"word":"violated","exit_code":1', 1)


def _repeat_a_key(text: str) -> str:
    return text.replace('"outcome":"violated"', '"outcome":"violated","outcome":"holds"', 1)


def _forget_a_deviation(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if not line.startswith('{"deviation"'))


def _join_two(text: str) -> str:
    return text + text


def _another_schema(text: str) -> str:
    return text.replace(SCHEMA, "rankproof.run/0", 1)


def _unknown_field(text: str) -> str:
    return text.replace('"outcome":"holds"', '"outcome":"holds","score":1', 1)


DAMAGE: Mapping[str, Callable[[str], str]] = {
    "no-footer": _cut_last_line,
    "cut-mid-line": _cut_mid_line,
    "result-removed": _drop_one_result,
    "plan-edited": _shrink_plan,
    "outcome-edited": _edit_outcome,
    "footer-edited": _edit_the_footer,
    "key-repeated": _repeat_a_key,
    "deviation-removed": _forget_a_deviation,
    "two-joined": _join_two,
    "another-schema": _another_schema,
    "unknown-field": _unknown_field,
    "empty": lambda text: "",
}


@contract("GATE-02a", asks=("write_run", "read_run"), cases={name: (name,) for name in DAMAGE}, source="law: GATE-02")
def a_damaged_record_is_refused(court: Court, damage: str) -> None:
    """A record that lacks its footer, or was edited, concatenated or written by another schema, is refused.

    A truncated log of an older run, read as a green one, is the most common false evidence.
    """
    text = court.write_run(recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)), TODAY)
    damaged = DAMAGE[damage](text)
    assert damaged != text, f"{damage} changed nothing, so this case proves nothing"
    refusal_of(court.read_run, damaged)


EXPIRED, STALE, WIDER = "expired", "stale", "wider than what fails"
DEVIATIONS: dict[str, tuple[Run, Word, str]] = {
    "declared": (recorded((A, "violated"), (B, "violated"), deviations=(declared(),)), "conformant", ""),
    "declared-one": (recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)), "conformant", ""),
    "last-day": (recorded((A, "violated"), deviations=(declared(expires=TODAY),)), "conformant", ""),
    "expired": (recorded((A, "violated"), deviations=(declared(expires="2026-06-14"),)), "violated", EXPIRED),
    "expired-and-mended": (recorded((A, "holds"), deviations=(declared(expires="2026-06-14"),)), "violated", EXPIRED),
    "stale": (recorded((A, "holds"), (B, "holds"), deviations=(declared(),)), "violated", STALE),
    "too-wide": (recorded((A, "violated"), (B, "holds"), deviations=(declared(),)), "violated", WIDER),
    "unmatched-case": (recorded((A, "holds"), deviations=(declared("tp9"),)), "violated", "matches nothing"),
    "unmatched-id": (recorded((A, "holds"), deviations=(declared("*", id="TOPO-99"),)), "violated", "matches nothing"),
    "outside-the-profile": (recorded((A, "holds"), deviations=(declared("*", id="ARGV-01"),)), "conformant", ""),
    "a-case-outside": (recorded((A, "holds"), deviations=(declared("pp4"),), cut=("TOPO-02[pp4]",)), "conformant", ""),
    "does-not-cover-broken": (recorded((A, "broken"), deviations=(declared(),)), "broken", ""),
    "does-not-cover-others": (
        recorded((A, "violated"), (B, "violated"), deviations=(declared("pp2-tp2"),)), "violated", ""
    ),
    "twice-covered": (
        recorded((A, "violated"), deviations=(declared("pp2-*"), declared("pp2-tp2"))), "violated", "2 deviations"
    ),
}  # fmt: skip


@contract("GATE-03", asks="verdict", cases=DEVIATIONS, source="law: GATE-03")
def a_deviation_covers_exactly_what_fails_until_it_expires(court: Court, run: Run, word: Word, words: str) -> None:
    """A deviation has an id, a reason, an issue, an owner and an expiry date. A stale, unmatched, expired or too broad
    deviation is red.

    A baseline that only grows is a list that nobody reads. An entry whose contract holds again must be removed, or it
    hides the next failure. An error is never a deviation.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}; faults: {[f.words for f in judged.faults]}"
    if words:
        said = [fault.words for fault in judged.faults]
        assert any(words in each for each in said), f"no fault says {words!r}; said: {said}"
    elif word == "conformant":
        assert not judged.faults, f"faults in a run that has none: {[fault.words for fault in judged.faults]}"


RECURRENT = Absence(features=frozenset({"recurrent"}), kind="stack", reason="it has no such block")


def _declining(*reasons: str) -> Run:
    """A run of a stack that declares to have no recurrent block, and declines each item for one of the reasons."""
    run = recorded((A, "not offered"), (B, "not offered"))
    subject = replace(run.header.subject, abilities=Abilities(has=frozenset({"experts"}), lacks=(RECURRENT,)))
    results = tuple(replace(each, words=f"mine 3: {why}") for each, why in zip(run.results, reasons, strict=True))
    return replace(run, header=replace(run.header, subject=subject), results=results)


BOTH = frozenset({"topology", "launch"})
CLAIMS: dict[str, tuple[Run, Word]] = {
    "claimed-and-answered": (recorded((A, "holds"), (B, "not offered")), "conformant"),
    "claimed-and-always-declined": (recorded((A, "not offered"), (B, "not offered")), "violated"),
    "declined-for-a-declared-lack": (_declining(str(RECURRENT), str(RECURRENT)), "nothing ran"),
    "declined-for-another-reason-too": (_declining(str(RECURRENT), "not today"), "violated"),
    "claimed-and-not-in-the-profile": (recorded((A, "holds"), offers=BOTH), "conformant"),
    "not-claimed-and-declined": (recorded((A, "not offered"), offers=frozenset()), "nothing ran"),
}


@contract("GATE-04", asks="verdict", cases=CLAIMS, source="law: GATE-04")
def a_claim_is_verified(court: Court, run: Run, word: Word) -> None:
    """The gate verifies a stack's claims: a question that a stack offers and then declines in every case is a
    violation, unless it declines them for what it has declared to lack.

    Otherwise a stack that claims everything and answers nothing would pass with every contract "not offered".
    """
    judged = court.verdict(run, TODAY)
    faults = [fault.words for fault in judged.faults]
    assert judged.word == word, f"verdict is {judged.word}, expected {word}; faults: {faults}"


FATES: dict[str, tuple[Result, Fate]] = {
    "for-its-words": (Result(id="X-01", case="a", outcome="violated", words="dp is 4, expected 2"), "killed"),
    "for-other-words": (Result(id="X-01", case="a", outcome="violated", words="ep is 4"), "wrong words"),
    "by-a-crash": (Result(id="X-01", case="a", outcome="broken", words="dp is 4, expected 2"), "crashed"),
    "not-at-all": (Result(id="X-01", case="a", outcome="holds"), "survived"),
    "never-asked": (Result(id="X-01", case="a", outcome="not run", words="dp is 4, expected 2"), "void"),
    "not-offered": (Result(id="X-01", case="a", outcome="not offered", words="dp is 4, expected 2"), "void"),
}


@contract("GATE-07", asks="fate", cases=FATES, source="law: GATE-07")
def only_the_declared_words_are_a_kill(court: Court, result: Result, expected: Fate) -> None:
    """Only a violation in a mutant's declared words kills it. A crash or a skip is not a kill.

    A mutation runner that counts crashes as kills reports 100 % for a suite that cannot import. One project read 210 of
    210 "suspicious" mutants as "no survivors".
    """
    fate = court.fate(result, "dp is 4, expected 2")
    assert fate == expected, f"fate is {fate!r}, expected {expected!r} for {result.outcome} with {result.words!r}"


def _proved(fate: Fate) -> Run:
    run = recorded((A, "holds"), (B, "holds"))
    return replace(run, kills=(Kill(mutant="Mutant", of="TOPO-02", case="pp2-tp2", fate=fate, words="some words"),))


PROOFS: dict[str, tuple[Run, Word]] = {
    "all-killed": (_proved("killed"), "conformant"),
    "one-survived": (_proved("survived"), "broken"),
    "one-crashed": (_proved("crashed"), "broken"),
    "one-caught-for-other-words": (_proved("wrong words"), "broken"),
    "one-could-not-be-asked": (_proved("void"), "conformant"),
}


@contract("GATE-07a", asks="verdict", cases=PROOFS, source="law: GATE-07")
def a_suite_that_misses_its_mutants_cannot_judge(court: Court, run: Run, word: Word) -> None:
    """When a mutant survives in the same run, the suite is broken and gives no verdict on the stack.

    Megatron's golden gate had an inverted inequality for 189 days, because the gate had no test of its own.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
