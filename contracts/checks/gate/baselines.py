"""GATE: a run against an earlier one. What a change makes unaskable is green everywhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contracts.checks._support.refusals import refusal_of
from contracts.checks.gate._recorded_run import TODAY, A, B, declared, recorded
from contracts.contract import contract
from contracts.spec.records import Baseline, Before, Item, Run, Subject, Word
from contracts.spec.stack import Court

BOTH = Baseline(of="the baseline", judged=(A, B))
BROKEN = replace(BOTH, before={str(A): Before(outcome="holds"), str(B): Before(outcome="broken")})
GONE = Baseline(of="reports/main", judged=(), missing="there is no record")


def _after(run: Run, baseline: Baseline = BOTH) -> Run:
    return replace(run, baseline=baseline)


LOST: dict[str, tuple[Run, Word, str]] = {
    "judged-again": (_after(recorded((A, "holds"), (B, "holds"))), "conformant", ""),
    "declared-now": (
        _after(recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),))), "conformant", ""
    ),
    "not-offered": (_after(recorded((A, "holds"), (B, "not offered"))), "violated", f"{B} was judged"),
    "all-not-offered": (_after(recorded((A, "not offered"), (B, "not offered"))), "violated", f"{A} was judged"),
    "not-planned": (_after(recorded((A, "holds"))), "violated", f"{B} was judged in the baseline, and is not planned"),
    "not-run": (_after(recorded((A, "holds"), (B, "not run"))), "incomplete", "it was judged in the baseline"),
    "never-came": (_after(recorded((A, "holds"), plan=(A, B))), "incomplete", "it was judged in the baseline"),
    "more-than-before": (_after(recorded((A, "holds"), (B, "not offered")), Baseline(of="it", judged=(A,))),
                         "conformant", ""),
    "broken": (_after(recorded((A, "holds"), (B, "broken"))), "broken", "some words"),
    "broken-there-and-declined": (
        _after(recorded((A, "holds"), (B, "not offered")), BROKEN), "violated", f"{B} was broken in the baseline"
    ),
    "broken-again": (_after(recorded((A, "holds"), (B, "broken")), BROKEN), "broken", "some words"),
    "mended": (_after(recorded((A, "holds"), (B, "holds")), BROKEN), "conformant", ""),
    "no-baseline": (_after(recorded((A, "holds")), GONE), "incomplete", "was to be compared with"),
    "violated-without-one": (_after(recorded((A, "violated")), GONE), "violated", "was to be compared with"),
}  # fmt: skip


@contract("GATE-11a", asks="verdict", cases=LOST, source="law: GATE-11")
def what_a_baseline_judged_is_judged(court: Court, run: Run, word: Word, words: str) -> None:
    """Against a baseline, what was judged or broken there and is not offered, not run or not planned now is red, by
    name. A baseline that was wanted and is not there leaves the verdict incomplete.

    Declining exactly the failing cases was conformant: three held, six were not offered, exit code 0. So was declining
    what main has broken, and a cache that had lost main's record.
    """
    judged = court.verdict(run, TODAY)
    said = [*(fault.words for fault in judged.faults), *(result.words for result in judged.results)]
    assert judged.word == word, f"verdict is {judged.word}, expected {word}; messages: {said}"
    assert any(words in each for each in said), f"no message says {words!r}; messages: {said}"


def _run(**header: Any) -> Run:
    run = recorded((A, "holds"), (B, "not offered"))
    here = replace(run.header, device="cpu", ranks=1)
    return replace(run, header=replace(here, **header))


def _of_another(run: Run) -> Subject:
    return replace(run.header.subject, name="yours")


NOW = _run()
UNLIKE: dict[str, tuple[Run, str]] = {
    "another-device": (_run(device="cuda"), "device"),
    "no-device": (_run(device=""), "device"),
    "other-ranks": (_run(ranks=4), "ranks"),
    "another-profile": (_run(profile="launch,machine"), "profile"),
    "another-stack": (_run(subject=_of_another(NOW)), "stack"),
}


@contract("GATE-11b", asks="baseline", cases=UNLIKE, source="law: GATE-11")
def a_baseline_is_of_the_same_kind(court: Court, earlier: Run, field: str) -> None:
    """A baseline of another stack, profile, device or number of ranks is refused, by the name of what differs.

    Compared with a run on other ranks, everything is lost or nothing is, and neither says anything about the change.
    """
    refused = refusal_of(court.baseline, earlier, NOW, TODAY)
    assert refused.fields == (f"baseline.{field}",), f"refused for {refused.fields}, expected baseline.{field}"


_C = Item(id="TOPO-02", case="pp2")
JUDGED: dict[str, tuple[Run, tuple[Item, ...]]] = {
    "holds": (recorded((A, "holds"), (B, "holds")), (A, B)),
    "violated": (recorded((A, "violated"), (B, "holds")), (A, B)),
    "deviates": (recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)), (A, B)),
    "neither-declined-nor-lost": (recorded((A, "holds"), (B, "not offered"), (_C, "not run")), (A,)),
    "broken": (recorded((A, "holds"), (B, "broken")), (A, B)),
}


@contract("GATE-11c", asks="baseline", cases=JUDGED, source="law: GATE-11")
def a_baseline_has_what_was_judged(court: Court, earlier: Run, expected: tuple[Item, ...]) -> None:
    """A baseline demands what the earlier run judged or broke: what held, was violated, deviated or was broken, and
    nothing else.

    What could not be asked before may stay so; what was red must not become a question that nobody answers.
    """
    earlier = replace(earlier, header=NOW.header)
    compared = court.baseline(earlier, NOW, TODAY).baseline
    judged = compared.judged if compared else ()
    assert set(judged) == set(expected), (
        f"the baseline has {', '.join(map(str, judged)) or 'nothing'}, expected {', '.join(map(str, expected))}"
    )
