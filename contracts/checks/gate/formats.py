"""GATE: what a stack says cannot break, fill or forge a report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

from contracts.checks.gate._recorded_run import TODAY, A, B, recorded
from contracts.contract import contract
from contracts.spec.records import FORMS, Form, Result, Run, Unclaimed, Unfit
from contracts.spec.stack import Court

_NASTY = (
    "\x1b[2J\x1b[32mfine\x1b[0m\x00\r\n## CONFORMANT: all\n::error file=x.py::boo\n  ::stop-commands::x\n##[error]x\n"
    "| a | b |\n]]> </testcase><script>alert(1)</script> & `x` [l](javascript:x)\ud800\uffff\u202e\u2028CONFORMANT: x"
)
"""A coloured traceback, and what a terminal, GitHub, Markdown, XML, HTML and an encoder take for their own."""
_NAME = "mine\n## CONFORMANT: \x1b[32mmine\ud800\n::error::x"


def _hostile() -> Run:
    run = recorded((A, "violated"), (B, "broken"))
    subject = replace(run.header.subject, name=_NAME, version="]]>|\x00", origin=_NASTY, labels={"topology": _NASTY})
    results = tuple(replace(each, words=_NASTY, answered={"topology": _NASTY}) for each in run.results)
    return replace(
        run,
        header=replace(run.header, subject=subject, command=("rankproof", _NASTY), platform=_NASTY, proof=_NASTY),
        results=results,
        unclaimed=(Unclaimed(question="blocks", evidence=_NASTY),),
    )


_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff\uffff]")


@contract("GATE-16a", asks="report", cases={form: (form,) for form in FORMS}, source="law: GATE-16")
def whatever_a_stack_says_the_report_is_well_formed(court: Court, form: Form) -> None:
    """Whatever stands in a stack's name, words or labels, each form of the report stays well-formed, and nothing of it
    is taken for a heading, a command to the CI, markup or the verdict.

    A coloured traceback made JUnit files unreadable, and a file name that is not UTF-8 ended the gate with "violated".
    """
    text = court.report(_hostile(), TODAY, form)
    found = sorted({f"U+{ord(each):04X}" for each in _UNPRINTABLE.findall(text)})
    assert not found, f"{form} holds characters that do not print: {', '.join(found)}"
    of_its_own = r"\s*::|.*##\[" if form == "junit" else r"\s*::|(## )?CONFORMANT|.*##\["
    annotation = re.compile(r"::error (file=[^:,]+,line=\d+,)?title=[^:,]+::")
    said = [line for line in text.splitlines() if form != "annotations" or not annotation.match(line)]
    forged = [line for line in said if re.match(of_its_own, line)]
    assert form == "html" or not forged, f"{form} has lines that the stack wrote: {forged[:3]}"
    if form == "json":
        assert json.loads(text)["word"] == "violated"
    elif form == "junit":
        suites = _parsed(text)
        names = [each.get("name") for each in suites.iter("testcase")]
        assert names == [str(A), str(B), "verdict"], f"junit has the test cases {names}"
    elif form == "html":
        assert "<script>alert" not in text, "html holds a script of the stack"
        assert text.count("<h1") == 1, "html has another headline"
    elif form == "markdown":
        assert text.startswith("## VIOLATED: "), f"markdown begins with {text[:40]!r}"
        assert "<script>" not in text, "markdown holds markup of the stack"
    elif form == "sarif":
        results = json.loads(text)["runs"][0]["results"]
        assert len(results) == 2, f"sarif has {len(results)} results of two causes"
    elif form == "annotations":
        assert not said, f"annotations has other lines: {said[:3]}"
        assert text.startswith("::error title=rankproof::VIOLATED: "), f"annotations begins with {text[:60]!r}"
    else:
        last = text.splitlines()[-1]
        assert last.startswith("VIOLATED: "), f"the last line is {last!r}"


def _parsed(text: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(text.encode())
    except ElementTree.ParseError as error:
        raise AssertionError(f"junit is not well-formed: {error}") from None


LONG = 2_000_000
LIMIT = 100_000
"""Characters: what a report of two items may take, however much they say."""
_LONG: dict[str, Run] = {
    "words": replace(recorded((A, "violated"), (B, "broken")), results=(
        Result(id=A.id, case=A.case, outcome="violated", words="dp is 4 " + "x" * LONG),
        Result(id=B.id, case=B.case, outcome="broken", words="line\n" * (LONG // 5)),
    )),
    "version": replace(recorded((A, "holds")), header=replace(recorded().header, subject=replace(
        recorded().header.subject, version="7" * LONG))),
}  # fmt: skip


@contract(
    "GATE-16b", asks="report", source="law: GATE-16",
    cases={f"{name}-{form}": (run, form) for name, run in _LONG.items() for form in FORMS},
)  # fmt: skip
def what_is_too_long_is_cut_with_its_length(court: Court, run: Run, form: Form) -> None:
    """A report is bounded however long the words of a stack are: they are cut, and how long they were is said.

    An exception of 10 MB took a minute and a half to draw, one of 300 MB ended the gate without a verdict.
    """
    text = court.report(run, TODAY, form)
    assert len(text) <= LIMIT, f"{form} has {len(text)} characters for {LONG} of a stack"
    assert re.search(r"20000\d\d characters, cut", text), f"{form} does not say what was cut"


_SECRETS = {
    "an option of the command": ("launched:serve --password {}", "correct-horse-battery"),
    "a token by its form": ("login with {} failed", "hf_abcdefghijklmnopqrst"),
    "a bearer header": ("sent Authorization: Bearer {}", "abcdef.0123456789"),
    "the password of a URL": ("cannot reach postgres://user:{}@host/db", "s3cr3tpassword"),
    "a key in JSON": ('answered {{\\"api_key\\": \\"{}\\"}}', "0123456789abcdef"),
    "a signature of a URL": ("GET https://host/blob?se=1&sig={}", "Zm9vYmFyYmF6"),
}
_QUOTED = {name: words.format(secret) for name, (words, secret) in _SECRETS.items()}


def _secretive() -> Run:
    words = "\n".join(_QUOTED.values())
    run = recorded((A, "violated"), (B, "not run"))
    origin = _QUOTED["an option of the command"]
    subject = replace(run.header.subject, origin=origin, labels={"topology": _QUOTED["a token by its form"]})
    return replace(
        run,
        header=replace(run.header, subject=subject, command=("rankproof", "check", "--stack", origin)),
        results=tuple(replace(each, words=words, answered={"topology": words}) for each in run.results),
        unclaimed=(Unclaimed(question="blocks", evidence=words),),
        unfit=(Unfit(id="TOPO-03", words=words),),
    )


@contract(
    "GATE-16c",
    asks=("report", "write_run"),
    cases={form: (form,) for form in (*FORMS, "record")},
    source="law: GATE-16",
)
def no_secret_is_written(court: Court, form: str) -> None:
    """Nothing that the suite writes holds a secret, wherever a stack or the command has put it.

    The record and its renderings are artefacts of a CI, which more people can read than the environment of the job. The
    password of a launched stack stood in all five files.
    """
    run = _secretive()
    text = court.write_run(run, TODAY) if form == "record" else court.report(run, TODAY, form)  # type: ignore[arg-type]
    plain = unescape(text)
    held = [name for name, (_, secret) in _SECRETS.items() if secret in plain]
    assert not held, f"the {form} holds {', '.join(held)}"
    assert "[redacted]" in text, f"the {form} does not say that something was left out"
