"""Every form of a report: it has one verdict and what a reader needs, and nothing in it breaks, fills or forges it.

Each requirement is a function of whoever draws the reports, so that `BROKEN` can show that it fails where it must.
"""

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import cast
from xml.etree import ElementTree

import pytest

from contracts.court import record
from contracts.court.report import render
from contracts.court.verdict import verdict
from contracts.spec.records import FORMS, Form, Item, Result, Run, Unclaimed, Unfit, Verdict
from tests_unit.gate._recorded_run import TODAY, UNTESTED, A, B, declared, recorded

DAY = datetime.date.fromisoformat(TODAY)
Draw = Callable[[Run, Form], str]


def judged(run: Run) -> Verdict:
    return verdict(run, DAY)


def report(run: Run, form: Form) -> str:
    return render(run, judged(run), form)


def reread(run: Run) -> Run:
    return record.read(record.write(run, DAY))[0]


def plain(text: str) -> str:
    """The words of a report without markup."""
    return " ".join(re.sub(r"<[^>]+>", " ", unescape(text)).split())


FAILED = replace(recorded((A, "violated"), (B, "holds")), results=(
    Result(id=A.id, case=A.case, outcome="violated", words="dp is 4, expected 2", rank=5,
           answered={"topology": "mine 3 (shimmed: gloo)"}),
    Result(id=B.id, case=B.case, outcome="holds"),
))  # fmt: skip
NEEDED = ("dp is 4, expected 2", "DP divides the world by every other axis.", "bringup", "TOPO-02[pp2-tp2]", "5",
          "mine 3 (shimmed: gloo)", "rankproof check --stack my.stack:Mine --profile",
          "rankproof explain TOPO-02")  # fmt: skip


def has_what_a_reader_needs(draw: Draw, form: Form) -> None:
    missing = [words for words in NEEDED if words not in plain(draw(FAILED, form))]
    assert not missing, f"{form} does not say {missing}"


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("json", "comment", "check-run")])
def test_a_violation_is_printed_with_values_statement_case_rank_and_rerun_command(form: Form) -> None:
    has_what_a_reader_needs(report, form)


RUNS: dict[str, Run] = {
    "conformant": recorded((A, "holds"), (B, "holds")),
    "violated": FAILED,
    "deviates": recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),)),
    "stale deviation": recorded((A, "holds"), deviations=(declared(),)),
    "not run": recorded((A, "holds"), (B, "not run")),
    "untested": recorded((A, "holds"), (UNTESTED, "untested")),
    "broken": recorded((A, "holds"), (B, "broken")),
    "absent": recorded((A, "holds"), plan=(A, B)),
    "nothing": recorded(plan=(A, B)),
    "unfit": replace(recorded((A, "holds")), unfit=(Unfit(id=A.id, words="its mutant survived"),)),
}
COMPLETE: tuple[Form, ...] = ("json", "junit", "html")
HEADLINES = ("CONFORMANT: ", "VIOLATED: ", "INCOMPLETE: ", "BROKEN: ")


def gives_the_verdict(draw: Draw, form: Form, run: Run) -> None:
    expected, text = judged(run), unescape(draw(run, form))
    failed = [each.item for each in expected.results if each.outcome not in ("holds", "not offered")]
    missing = [str(each) for each in (run.plan.items if form in COMPLETE else failed) if not _names(text, each)]
    missing += [each.words for each in run.unfit if each.words not in text]
    assert not missing, f"{form} does not list {missing}"
    if form == "json":
        said = json.loads(text)
        assert (said["word"], said["exit_code"]) == (expected.word, expected.exit_code)
    elif form == "junit":
        red = [each for each in ElementTree.fromstring(text.encode()).iter() if each.tag in ("failure", "error")]
        assert bool(red) == bool(expected.exit_code), f"junit has {len(red)} failures, the verdict is {expected.word}"
    else:
        assert [each for each in HEADLINES if each in text] == [f"{expected.word.upper()}: "]


def _names(text: str, item: Item) -> bool:
    """Whether a report names an item, or its case among those of its contract."""
    return item.id in text and item.case in text


@pytest.mark.parametrize("name", RUNS)
def test_every_form_gives_the_same_verdict(name: str) -> None:
    assert judged(reread(RUNS[name])) == judged(RUNS[name])
    for form in FORMS:
        gives_the_verdict(report, form, RUNS[name])


DECLARING = replace(FAILED, header=replace(FAILED.header, subject=replace(
    FAILED.header.subject, conventions={"rope-angles": "float32", "misfits": "first"}
)))  # fmt: skip


def has_the_conventions(draw: Draw, form: Form) -> None:
    text = plain(draw(reread(DECLARING), form))
    for name, choice in DECLARING.header.subject.conventions.items():
        assert re.search(rf"{name}\W+{choice}\b", text), f"{form} does not say that {name} is {choice}"


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "json"])
def test_every_readable_report_names_the_declared_conventions(form: Form) -> None:
    has_the_conventions(report, form)


NASTY = (
    "\x1b[2J\x1b[32mfine\x1b[0m\x00\r\n## CONFORMANT: all\n::error file=x.py::boo\n  ::stop-commands::x\n##[error]x\n"
    "| a | b |\n]]> </testcase><script>alert(1)</script> & `x` [l](javascript:x)\ud800\uffff\u202e\u2028CONFORMANT: x"
)
"""A coloured traceback, and what a terminal, GitHub, Markdown, XML, HTML and an encoder take for their own."""
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff\uffff]")


def hostile() -> Run:
    run = recorded((A, "violated"), (B, "broken"))
    name = "mine\n## CONFORMANT: \x1b[32mmine\ud800\n::error::x"
    subject = replace(run.header.subject, name=name, version="]]>|\x00", origin=NASTY, labels={"topology": NASTY})
    header = replace(run.header, subject=subject, command=("rankproof", NASTY), platform=NASTY, proof=NASTY)
    results = tuple(replace(each, words=NASTY, answered={"topology": NASTY}) for each in run.results)
    unclaimed = (Unclaimed(question="blocks", evidence=NASTY),)
    return replace(run, header=header, results=results, unclaimed=unclaimed)


def is_well_formed(draw: Draw, form: Form) -> None:
    text = draw(hostile(), form)
    found = sorted({f"U+{ord(each):04X}" for each in UNPRINTABLE.findall(text)})
    assert not found, f"{form} holds characters that do not print: {', '.join(found)}"
    of_its_own = r"\s*::|.*##\[" if form == "junit" else r"\s*::|(## )?CONFORMANT|.*##\["
    annotation = re.compile(r"::error (file=[^:,]+,line=\d+,)?title=[^:,]+::")
    said = [line for line in text.splitlines() if form != "annotations" or not annotation.match(line)]
    forged = [line for line in said if re.match(of_its_own, line)]
    assert form == "html" or not forged, f"{form} has lines that the stack wrote: {forged[:3]}"
    if form == "json":
        assert json.loads(text)["word"] == "violated"
    elif form == "junit":
        suites = ElementTree.fromstring(text.encode())
        assert [each.get("name") for each in suites.iter("testcase")] == [str(A), str(B), "verdict"]
    elif form == "html":
        assert "<script>alert" not in text, "html holds a script of the stack"
        assert text.count("<h1") == 1
    elif form == "markdown":
        assert text.startswith("## VIOLATED: ")
        assert "<script>" not in text
    elif form == "sarif":
        assert len(json.loads(text)["runs"][0]["results"]) == 2
    elif form == "check-run":
        assert json.loads(text)["output"]["title"].startswith("VIOLATED: ")
        assert "<script>" not in text
    elif form == "code-quality":
        assert [each["severity"] for each in json.loads(text)] == ["blocker", "major", "major"]
    elif form == "comment":
        assert text.splitlines()[1].startswith("### VIOLATED: ")
        assert "<script>" not in text
    elif form == "annotations":
        assert not said
        assert text.startswith("::error title=rankproof::VIOLATED: ")
    else:
        assert text.splitlines()[-1].startswith("VIOLATED: ")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_report_is_well_formed_whatever_a_stack_prints(form: Form) -> None:
    is_well_formed(report, form)


LONG, LIMIT = 2_000_000, 100_000
"""Characters that a stack says, and those that a report of two items may have."""
LONG_WORDS = replace(recorded((A, "violated"), (B, "broken")), results=(
    Result(id=A.id, case=A.case, outcome="violated", words="dp is 4 " + "x" * LONG),
    Result(id=B.id, case=B.case, outcome="broken", words="line\n" * (LONG // 5)),
))  # fmt: skip
LONG_VERSION = replace(recorded((A, "holds")), header=replace(recorded().header, subject=replace(
    recorded().header.subject, version="7" * LONG)))  # fmt: skip


def is_cut(draw: Draw, form: Form, run: Run) -> None:
    text = draw(run, form)
    assert len(text) <= LIMIT, f"{form} has {len(text)} characters for {LONG} of a stack"
    assert re.search(r"20000\d\d characters, cut", text), f"{form} does not say what was cut"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", [LONG_WORDS, LONG_VERSION], ids=["words", "version"])
def test_long_words_are_cut_and_their_length_is_given(run: Run, form: Form) -> None:
    is_cut(report, form, run)


SECRETS = {
    "an option of the command": ("launched:serve --password {}", "correct-horse-battery"),
    "a token by its form": ("login with {} failed", "hf_abcdefghijklmnopqrst"),
    "a bearer header": ("sent Authorization: Bearer {}", "abcdef.0123456789"),
    "the password of a URL": ("cannot reach postgres://user:{}@host/db", "s3cr3tpassword"),
    "a key in JSON": ('answered {{\\"api_key\\": \\"{}\\"}}', "0123456789abcdef"),
    "a signature of a URL": ("GET https://host/blob?se=1&sig={}", "Zm9vYmFyYmF6"),
}
QUOTED = {name: words.format(secret) for name, (words, secret) in SECRETS.items()}


def secretive() -> Run:
    words, origin = "\n".join(QUOTED.values()), QUOTED["an option of the command"]
    run = recorded((A, "violated"), (B, "not run"))
    subject = replace(run.header.subject, origin=origin, labels={"topology": QUOTED["a token by its form"]})
    return replace(
        run,
        header=replace(run.header, subject=subject, command=("rankproof", "check", "--stack", origin)),
        results=tuple(replace(each, words=words, answered={"topology": words}) for each in run.results),
        unclaimed=(Unclaimed(question="blocks", evidence=words),),
        unfit=(Unfit(id="TOPO-03", words=words),),
    )


def has_no_secret(draw: Draw, form: Form) -> None:
    text = draw(secretive(), form)
    held = [name for name, (_, secret) in SECRETS.items() if secret in unescape(text)]
    assert not held, f"the {form} holds {', '.join(held)}"
    assert "[redacted]" in text, f"the {form} does not say that something was left out"


def written(run: Run, _: Form) -> str:
    return record.write(run, DAY)


@pytest.mark.parametrize("form", [*FORMS, "record"])
def test_no_secret_is_written(form: str) -> None:
    has_no_secret(written if form == "record" else report, cast(Form, form))


def without(pattern: str, instead: str = "") -> Draw:
    return lambda run, form: re.sub(pattern, instead, report(run, form), flags=re.DOTALL)


def words_of(run: Run) -> str:
    return "".join(f"<p>{each.words}</p>" for each in run.results)


def undeclared(run: Run, form: Form) -> str:
    return report(replace(run, header=replace(run.header, subject=replace(run.header.subject, conventions={}))), form)


BROKEN: dict[str, tuple[Callable[[], None], str]] = {  # a requirement of somebody who draws wrongly, and its words
    "no command to run it again": (
        lambda: has_what_a_reader_needs(without(r"rankproof check \S+", "see the log"), "terminal"),
        r"terminal does not say \['rankproof check --stack my.stack:Mine",
    ),
    "skips are green in JUnit": (
        lambda: gives_the_verdict(without(r"<(failure|error)\b.*?</\1>"), "junit", RUNS["not run"]),
        "junit has 0 failures, the verdict is incomplete",
    ),
    "what holds is counted and not named": (
        lambda: gives_the_verdict(without("pp2-[te]p2"), "html", RUNS["conformant"]),
        r"html does not list \['TOPO-02\[pp2-tp2\]', 'TOPO-02\[pp2-ep2\]'\]",
    ),
    "only failures are annotated": (
        lambda: gives_the_verdict(without("::warning .*"), "annotations", RUNS["untested"]),
        r"annotations does not list \['PAT-12'\]",
    ),
    "no conventions": (
        lambda: has_the_conventions(undeclared, "markdown"), "markdown does not say that rope-angles is float32",
    ),
    "colours in JUnit": (
        lambda: is_well_formed(without(r"\\x1b", "\x1b"), "junit"), r"junit holds .* do not print: U\+001B",
    ),
    "half a character in JSON": (
        lambda: is_well_formed(without(r"\\\\ud800", "\ud800"), "json"), r"json holds .* do not print: U\+D800",
    ),
    "words of several lines in Markdown": (
        lambda: is_well_formed(without(" / ", "\n"), "markdown"), "markdown has lines that the stack wrote: .'## CONF",
    ),
    "words are markup": (
        lambda: is_well_formed(lambda run, form: unescape(report(run, form)), "html"), "html holds a script of the",
    ),
    "commands reach the runner": (
        lambda: is_well_formed(without(r"\\::", "::"), "terminal"), "terminal has lines that the stack wrote",
    ),
    "whole words": (
        lambda: is_cut(lambda run, form: report(run, form) + words_of(run), "markdown", LONG_WORDS),
        "characters for 2000000 of a stack",
    ),
    "cuts without a word": (
        lambda: is_cut(without("characters, cut"), "html", LONG_WORDS), "html does not say what was cut",
    ),
    "quotes the stack": (
        lambda: has_no_secret(lambda run, form: report(run, form) + words_of(run), "html"),
        "the html holds an option of the command, a token by its form",
    ),
    "records the command": (
        lambda: has_no_secret(lambda run, _: written(run, _) + run.header.command[-1], "terminal"),
        "the terminal holds an option of the command",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_test_of_the_report_fails_for_a_report_that_breaks_it(name: str) -> None:
    requirement, words = BROKEN[name]
    with pytest.raises(AssertionError, match=words):
        requirement()
