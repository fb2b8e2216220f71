"""GATE: reports of the verdict in every form, and the record, which can be judged again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

from contracts.checks.gate._recorded_run import TODAY, UNTESTED, A, B, declared, recorded
from contracts.contract import contract
from contracts.spec.records import (
    FORMS,
    Form,
    Item,
    Result,
    Run,
    Unfit,
)
from contracts.spec.stack import Court

_FAILED = replace(recorded((A, "violated"), (B, "holds")), results=(
    Result(id=A.id, case=A.case, outcome="violated", words="dp is 4, expected 2", rank=5,
           answered={"topology": "mine 3 (shimmed: gloo)"}),
    Result(id=B.id, case=B.case, outcome="holds"),
))  # fmt: skip
TOLD = ("dp is 4, expected 2", "DP divides the world by every other axis.", "bringup", "TOPO-02[pp2-tp2]", "5",
        "mine 3 (shimmed: gloo)", "rankproof check --stack my.stack:Mine --profile",
        "rankproof explain TOPO-02")  # fmt: skip


@contract("GATE-06", asks="report", cases={form: (form,) for form in FORMS if form != "json"}, source="law: GATE-06")
def a_violation_tells_all_that_is_needed(court: Court, form: Form) -> None:
    """A violation prints the values, the contract's statement, its source, the case, the rank that diverged first, who
    answered and how, and a command to run it again.

    "Tensors differ" at three in the morning costs a day; the same failure with its rank and a command costs minutes.
    """
    text = unescape(court.report(_FAILED, TODAY, form))
    plain = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    missing = [words for words in TOLD if words not in plain]
    assert not missing, f"{form} does not say {missing}"


COMPLETE: frozenset[Form] = frozenset({"json", "junit", "html"})


def _names(text: str, item: Item) -> bool:
    """Whether a report names an item, alone or as one of several cases of its contract."""
    return item.id in text and item.case in text


SAME_EVERYWHERE: dict[str, tuple[Run]] = {
    "conformant": (recorded((A, "holds"), (B, "holds")),),
    "violated": (_FAILED,),
    "deviates": (recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)),),
    "stale-deviation": (recorded((A, "holds"), deviations=(declared(),)),),
    "not-run": (recorded((A, "holds"), (B, "not run")),),
    "untested": (recorded((A, "holds"), (UNTESTED, "untested")),),
    "broken": (recorded((A, "holds"), (B, "broken")),),
    "absent": (recorded((A, "holds"), plan=(A, B)),),
    "nothing": (recorded(plan=(A, B)),),
    "unfit": (replace(recorded((A, "holds")), unfit=(Unfit(id=A.id, words="its mutant survived"),)),),
}


@contract("GATE-08", asks=("verdict", "report"), cases=SAME_EVERYWHERE, source="law: GATE-08")
def every_form_tells_the_same_verdict(court: Court, run: Run) -> None:
    """Every form of the report gives the same verdict. JSON, JUnit and HTML name every planned item, the others each
    item that fails or was not judged.

    A JUnit file that shows an incomplete run as skips only is green in every dashboard.
    """
    judged = court.verdict(run, TODAY)
    failed = [result.item for result in judged.results if result.outcome not in ("holds", "not offered")]
    for form in FORMS:
        text = unescape(court.report(run, TODAY, form))
        missing = [str(item) for item in (run.plan.items if form in COMPLETE else failed) if not _names(text, item)]
        missing += [each.words for each in run.unfit if each.words not in text]
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
    """A gate run is itself a receipt: written, read back and judged again, it gives the same verdict.

    Evidence that can be judged only where it was made is a screenshot.
    """
    before = court.verdict(run, TODAY)
    again = court.verdict(court.read_run(court.write_run(run, TODAY)), TODAY)
    assert again == before, f"replayed verdict is {again.word} {again.counts}, was {before.word} {before.counts}"


_DECLARING = replace(_FAILED, header=replace(_FAILED.header, subject=replace(
    _FAILED.header.subject, conventions={"rope-angles": "float32", "misfits": "first"}
)))  # fmt: skip
READ: tuple[Form, ...] = ("terminal", "markdown", "html", "json")


@contract(
    "GATE-12c", asks=("report", "read_run", "write_run"), cases={form: (form,) for form in READ}, source="law: GATE-12"
)
def a_report_tells_the_conventions_that_a_stack_declares(court: Court, form: Form) -> None:
    """What a person reads of a run names each convention that the stack declares, with its choice, also when the record
    is read back later.

    What holds under one convention is violated under another, so a verdict without its conventions says little.
    """
    run = court.read_run(court.write_run(_DECLARING, TODAY))
    text = " ".join(re.sub(r"<[^>]+>", " ", unescape(court.report(run, TODAY, form))).split())
    for name, choice in _DECLARING.header.subject.conventions.items():
        told = re.search(rf"{name}\W+{choice}\b", text)
        assert told, f"{form} does not say that {name} is {choice}"
