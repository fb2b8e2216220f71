"""GATE: the suite itself. A gate that cannot say no is worse than none, because it is believed.

The court is the party here: each case is a small recorded run with the verdict it deserves, worked out by hand. The
dated incidents behind the cases are in `docs/gate.md`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

from contracts.checks._refusals import refusal_of
from contracts.contract import contract
from contracts.spec.records import (
    FORMS,
    SCHEMA,
    Deviation,
    Fate,
    Form,
    Header,
    Item,
    Kill,
    Outcome,
    Plan,
    Result,
    Run,
    Statement,
    Subject,
    Word,
)
from contracts.spec.stack import Court

TODAY = "2026-06-15"
A, B = Item(id="TOPO-02", case="pp2-tp2"), Item(id="TOPO-02", case="pp2-ep2")
UNTESTED = Item(id="PAT-12")


def _run(
    *came: tuple[Item, Outcome],
    plan: tuple[Item, ...] | None = None,
    deviations: tuple[Deviation, ...] = (),
    offers: frozenset[str] = frozenset({"topology"}),
) -> Run:
    """A run of two planned items, or as many as came, with some words for each outcome."""
    planned = plan if plan is not None else tuple(item for item, _ in came)
    promise = Statement(promise="DP divides the world by every other axis.", source="bringup", asks=("topology",))
    return Run(
        header=Header(
            schema=SCHEMA, suite="1", revision="0", profile="launch", started="2026-06-15T00:00:00+00:00",
            subject=Subject(name="mine", version="3", origin="my.stack:Mine", offers=offers, layouts=frozenset()),
            assistants=(), command=("lanegate", "check"), python="3.11", platform="linux",
        ),
        plan=Plan(items=planned, outside=("ARGV-01",), promises={item.id: promise for item in planned}),
        results=tuple(
            Result(id=item.id, case=item.case, outcome=outcome, words="" if outcome == "holds" else "some words")
            for item, outcome in came
        ),
        deviations=deviations,
    )  # fmt: skip


def _declared(case: str = "pp2-*", expires: str = "2026-12-31", id: str = "TOPO-02") -> Deviation:
    return Deviation(id=id, case=case, reason="the mesh is rebuilt in May", issue="#7", owner="mesh", expires=expires)


VERDICTS: dict[str, tuple[Run, Word, int]] = {
    "all-hold": (_run((A, "holds"), (B, "holds")), "conformant", 0),
    "one-violated": (_run((A, "holds"), (B, "violated")), "violated", 1),
    "violated-and-broken": (_run((A, "broken"), (B, "violated")), "violated", 1),
    "one-broken": (_run((A, "holds"), (B, "broken")), "broken", 4),
    "broken-and-not-run": (_run((A, "not run"), (B, "broken")), "broken", 4),
    "one-not-run": (_run((A, "holds"), (B, "not run")), "incomplete", 3),
    "one-untested": (_run((A, "holds"), (UNTESTED, "untested")), "incomplete", 3),
    "one-not-offered": (_run((A, "holds"), (B, "not offered")), "conformant", 0),
    "nothing-planned": (_run(), "nothing ran", 5),
    "nothing-offered": (_run((A, "not offered"), offers=frozenset()), "nothing ran", 5),
    "all-skipped": (_run((A, "not run"), (B, "not run")), "incomplete", 3),
    "only-untested": (_run((UNTESTED, "untested")), "incomplete", 3),
}


@contract("GATE-01", asks="verdict", cases=VERDICTS, source="law: GATE-01")
def only_what_was_judged_and_held_is_a_pass(court: Court, run: Run, word: Word, exit_code: int) -> None:
    """Nothing ran, a tier missing, a skip, an untested promise: none is a pass, and the exit code says so.

    Conformance gates of great projects have read "did not run" as green: a pytest exit 5 mapped to 0, a GPU tier that
    was skipped whole, six of eight scenarios skipped and the badge green, `all([])`. The verdict is conformant,
    violated, incomplete or broken, or that nothing ran, and each has its own exit code.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
    assert judged.exit_code == exit_code, f"exit code is {judged.exit_code}, expected {exit_code} for {word}"


PLANS: dict[str, tuple[Run, Word, str]] = {
    "one-absent": (_run((A, "holds"), plan=(A, B)), "incomplete", "no result came"),
    "not-planned": (_run((A, "holds"), (B, "holds"), plan=(A,)), "broken", "TOPO-02[pp2-ep2]"),
    "came-twice": (_run((A, "holds"), (A, "violated"), (B, "holds"), plan=(A, B)), "violated", "2 results"),
    "held-twice": (_run((A, "holds"), (A, "holds"), (B, "holds"), plan=(A, B)), "broken", "2 results"),
    "planned-twice": (_run((A, "holds"), plan=(A, A)), "broken", "planned 2 times"),
}


@contract("GATE-02", asks="verdict", cases=PLANS, source="law: GATE-02")
def what_was_planned_must_come(court: Court, run: Run, word: Word, words: str) -> None:
    """The plan, ids × cases, is written before anything runs; what is planned and absent is red, and so is what came
    unplanned.

    A plan computed from what was collected shrinks with it: deselect a test, rename a folder, lose a worker, and the
    smaller plan is fulfilled. OCI's runner and array-api-tests both shipped that.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"
    said = [*(fault.words for fault in judged.faults), *(result.words for result in judged.results)]
    assert any(words in each for each in said), f"nobody says {words!r}; said: {said}"


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


def _forget_a_deviation(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if not line.startswith('{"deviation"'))


def _join_two(text: str) -> str:
    return text + text


def _another_schema(text: str) -> str:
    return text.replace(SCHEMA, "lanegate.run/0", 1)


def _unknown_field(text: str) -> str:
    return text.replace('"outcome":"holds"', '"outcome":"holds","score":1', 1)


DAMAGE: Mapping[str, Callable[[str], str]] = {
    "no-footer": _cut_last_line,
    "cut-mid-line": _cut_mid_line,
    "result-removed": _drop_one_result,
    "plan-edited": _shrink_plan,
    "outcome-edited": _edit_outcome,
    "deviation-removed": _forget_a_deviation,
    "two-joined": _join_two,
    "another-schema": _another_schema,
    "unknown-field": _unknown_field,
    "empty": lambda text: "",
}


@contract("GATE-02a", asks=("write_run", "read_run"), cases={name: (name,) for name in DAMAGE}, source="law: GATE-02")
def a_damaged_record_is_refused(court: Court, damage: str) -> None:
    """A record without its footer, or that was edited, joined or written by another schema, is refused.

    A truncated log of an older run read as a green one is the commonest way in which evidence lies.
    """
    text = court.write_run(_run((A, "violated"), (B, "holds"), deviations=(_declared("pp2-tp2"),)), TODAY)
    damaged = DAMAGE[damage](text)
    assert damaged != text, f"{damage} changed nothing, so this case proves nothing"
    refusal_of(court.read_run, damaged)


EXPIRED, STALE, WIDER = "expired", "stale", "wider than what fails"
DEVIATIONS: dict[str, tuple[Run, Word, str]] = {
    "declared": (_run((A, "violated"), (B, "violated"), deviations=(_declared(),)), "conformant", ""),
    "declared-one": (_run((A, "violated"), (B, "holds"), deviations=(_declared("pp2-tp2"),)), "conformant", ""),
    "last-day": (_run((A, "violated"), deviations=(_declared(expires=TODAY),)), "conformant", ""),
    "expired": (_run((A, "violated"), deviations=(_declared(expires="2026-06-14"),)), "violated", EXPIRED),
    "expired-and-mended": (_run((A, "holds"), deviations=(_declared(expires="2026-06-14"),)), "violated", EXPIRED),
    "stale": (_run((A, "holds"), (B, "holds"), deviations=(_declared(),)), "violated", STALE),
    "too-wide": (_run((A, "violated"), (B, "holds"), deviations=(_declared(),)), "violated", WIDER),
    "unmatched-case": (_run((A, "holds"), deviations=(_declared("tp9"),)), "violated", "matches nothing"),
    "unmatched-id": (_run((A, "holds"), deviations=(_declared("*", id="TOPO-99"),)), "violated", "matches nothing"),
    "outside-the-profile": (_run((A, "holds"), deviations=(_declared("*", id="ARGV-01"),)), "conformant", ""),
    "does-not-cover-broken": (_run((A, "broken"), deviations=(_declared(),)), "broken", ""),
    "does-not-cover-others": (
        _run((A, "violated"), (B, "violated"), deviations=(_declared("pp2-tp2"),)), "violated", ""
    ),
    "twice-covered": (
        _run((A, "violated"), deviations=(_declared("pp2-*"), _declared("pp2-tp2"))), "violated", "2 deviations"
    ),
}  # fmt: skip


@contract("GATE-03", asks="verdict", cases=DEVIATIONS, source="law: GATE-03")
def a_deviation_covers_exactly_what_fails_until_it_expires(court: Court, run: Run, word: Word, words: str) -> None:
    """A deviation carries id, reason, issue, owner and expiry; a stale, unmatched, expired or too wide one is red.

    A baseline that only ever grows is a list of things nobody looks at. An entry whose promise holds again must be
    removed, or it will hide the next time it breaks. An error is never a deviation.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}; faults: {[f.words for f in judged.faults]}"
    if words:
        said = [fault.words for fault in judged.faults]
        assert any(words in each for each in said), f"no fault says {words!r}; said: {said}"
    elif word == "conformant":
        assert not judged.faults, f"faults in a run that has none: {[fault.words for fault in judged.faults]}"


BOTH = frozenset({"topology", "launch"})
CLAIMS: dict[str, tuple[Run, Word]] = {
    "claimed-and-answered": (_run((A, "holds"), (B, "not offered")), "conformant"),
    "claimed-and-always-declined": (_run((A, "not offered"), (B, "not offered")), "violated"),
    "claimed-and-not-in-the-profile": (_run((A, "holds"), offers=BOTH), "conformant"),
    "not-claimed-and-declined": (_run((A, "not offered"), offers=frozenset()), "nothing ran"),
}


@contract("GATE-04", asks="verdict", cases=CLAIMS, source="law: GATE-04")
def a_claim_is_verified(court: Court, run: Run, word: Word) -> None:
    """What a stack claims is verified: a question that is claimed and declined in every case is a violation.

    A stack that claims everything and answers nothing would otherwise pass with every promise "not offered".
    """
    judged = court.verdict(run, TODAY)
    faults = [fault.words for fault in judged.faults]
    assert judged.word == word, f"verdict is {judged.word}, expected {word}; faults: {faults}"


_FAILED = replace(_run((A, "violated"), (B, "holds")), results=(
    Result(id=A.id, case=A.case, outcome="violated", words="dp is 4, expected 2", rank=5,
           answered={"topology": "mine 3 (shimmed: gloo)"}),
    Result(id=B.id, case=B.case, outcome="holds"),
))  # fmt: skip
TOLD = ("dp is 4, expected 2", "DP divides the world by every other axis.", "bringup", "TOPO-02[pp2-tp2]", "5",
        "mine 3 (shimmed: gloo)", "lanegate check --stack my.stack:Mine --profile",
        "lanegate explain TOPO-02")  # fmt: skip


@contract("GATE-06", asks="report", cases={form: (form,) for form in FORMS if form != "json"}, source="law: GATE-06")
def a_violation_tells_all_that_is_needed(court: Court, form: Form) -> None:
    """A violation prints the values, the promise, its source, the case, the rank that diverged first, who answered and
    how, and a line to run it again.

    "Tensors differ" at three in the morning costs a day; the same failure with its rank and a command costs minutes.
    """
    text = unescape(court.report(_FAILED, TODAY, form))
    plain = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    missing = [words for words in TOLD if words not in plain]
    assert not missing, f"{form} does not say {missing}"


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
    """A mutant is killed only by a violation in its declared words; a crash is not a kill, and neither is a skip.

    A mutation runner that counts crashes as kills reports 100 % for a suite that cannot import. One project read 210
    of 210 "suspicious" mutants as "no survivors".
    """
    fate = court.fate(result, "dp is 4, expected 2")
    assert fate == expected, f"fate is {fate!r}, expected {expected!r} for {result.outcome} with {result.words!r}"


def _proved(fate: Fate) -> Run:
    run = _run((A, "holds"), (B, "holds"))
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
    """When a mutant survives in the same run, the suite is broken and its verdict on the stack is not given.

    Megatron's golden gate had an inverted inequality for 189 days, because the gate had no test of its own.
    """
    judged = court.verdict(run, TODAY)
    assert judged.word == word, f"verdict is {judged.word}, expected {word}"


SAME_EVERYWHERE: dict[str, tuple[Run]] = {
    "conformant": (_run((A, "holds"), (B, "holds")),),
    "violated": (_FAILED,),
    "deviates": (_run((A, "violated"), (B, "holds"), deviations=(_declared("pp2-tp2"),)),),
    "stale-deviation": (_run((A, "holds"), deviations=(_declared(),)),),
    "not-run": (_run((A, "holds"), (B, "not run")),),
    "untested": (_run((A, "holds"), (UNTESTED, "untested")),),
    "broken": (_run((A, "holds"), (B, "broken")),),
    "absent": (_run((A, "holds"), plan=(A, B)),),
    "nothing": (_run(plan=(A, B)),),
}


@contract("GATE-08", asks=("verdict", "report"), cases=SAME_EVERYWHERE, source="law: GATE-08")
def every_form_tells_the_same_verdict(court: Court, run: Run) -> None:
    """Terminal, JSON, JUnit, Markdown and HTML tell the one verdict, and every planned id stands in each of them.

    A JUnit file in which an incomplete run shows only skips is green in every dashboard that reads it.
    """
    judged = court.verdict(run, TODAY)
    for form in FORMS:
        text = unescape(court.report(run, TODAY, form))
        missing = [item.id for item in run.plan.items if item.id not in text]
        assert not missing, f"{form} does not list {missing}"
        if form == "json":
            told = json.loads(text)
            seen = (told["word"], told["exit_code"])
            assert seen == (judged.word, judged.exit_code), f"json says {seen}, the verdict is {judged.word}"
        elif form == "junit":
            suites = ElementTree.fromstring(text.encode())
            red = len([e for e in suites.iter() if e.tag in ("failure", "error")])
            assert bool(red) == bool(judged.exit_code), f"junit has {red} failures, the verdict is {judged.word}"
        else:
            word = f"{judged.word.upper()}: "
            assert word in text, f"{form} does not say {word!r}"
            others = [w for w in ("CONFORMANT: ", "VIOLATED: ", "INCOMPLETE: ", "BROKEN: ") if w != word and w in text]
            assert not others, f"{form} also says {others}"


@contract("GATE-09", asks=("verdict", "write_run", "read_run"), cases=SAME_EVERYWHERE, source="law: GATE-09")
def a_recorded_run_is_judged_alike(court: Court, run: Run) -> None:
    """A gate run is itself a receipt: written, read back and judged again, it has the same verdict.

    Evidence that can only be judged where it was made is a screenshot.
    """
    before = court.verdict(run, TODAY)
    again = court.verdict(court.read_run(court.write_run(run, TODAY)), TODAY)
    assert again == before, f"replayed verdict is {again.word} {again.counts}, was {before.word} {before.counts}"
