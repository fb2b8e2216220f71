"""The verdict in the formats of CI services: JUnit, GitHub's annotations and check runs, GitLab's code quality, SARIF
2.1.0."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from contracts.contract import LAW
from contracts.court.causes import Cause, causes
from contracts.court.comment import comment
from contracts.court.plain_text import annotation, annotation_property, cut
from contracts.court.wording import counted, details, headline, items, judged_code, place
from contracts.spec.records import Outcome, Result, Run, Verdict

_LEVELS: Mapping[Outcome, str] = {"violated": "error", "broken": "error", "not run": "warning", "untested": "warning",
                                      "deviates": "note"}  # fmt: skip
_ANNOTATIONS: Mapping[str, str] = {"error": "failure", "warning": "warning", "note": "notice"}
_SEVERITIES: Mapping[str, str] = {"error": "major", "warning": "minor", "note": "info"}
_ANNOTATED = 9  # of each kind: GitHub shows ten of a step, and the verdict is one
_RECORD = ("run.jsonl", 1)  # the place of what has none; SARIF and GitLab demand one
_A_CALL = 50  # annotations that GitHub takes in one call
_SUMMARY, _TITLE = 60_000, 250  # characters of a check run; GitHub takes 65,535 and 255
_LONGEST = 1500  # characters of the words of one cause
_ITEMS = 50  # of a cause that are named


def junit(run: Run, verdict: Verdict) -> str:
    """JUnit knows pass, failure, error and skip. The verdict is a test case of its own, so that a run which is
    incomplete, and has only skips to show for it, is red there too."""
    element = ElementTree.SubElement
    suites = ElementTree.Element("testsuites")
    suite = element(suites, "testsuite", name=f"rankproof {verdict.subject} {verdict.profile}")
    properties = element(suite, "properties")
    said = {"verdict": verdict.word, "exit_code": str(verdict.exit_code), "self-test given": run.header.proof,
            "device": run.header.device, "backend": run.header.backend}  # fmt: skip
    said |= {f"judged {number}": each for number, each in enumerate(judged_code(run), start=1)}
    for name, value in said.items():
        if value:
            element(properties, "property", name=name, value=value)
    for result in verdict.results:
        case = element(suite, "testcase", name=str(result.item), classname=f"{run.header.subject.name}.{result.id}",
                       time=f"{result.seconds:g}")  # fmt: skip
        if result.outcome == "holds":
            continue
        where = place(run, result)
        if where is not None:
            case.set("file", where[0])
            case.set("line", str(where[1]))
        kind = {"violated": "failure", "broken": "error"}.get(result.outcome)
        if kind is None:
            element(case, "skipped", type=result.outcome, message=f"{result.outcome}: {_first(result.words)}")
            continue
        told = element(case, kind, type=result.outcome, message=_first(result.words))
        told.text = "\n".join(f"{label}: {words}" for label, words in details(run, result))
    for result in verdict.added:
        case = element(suite, "testcase", name=str(result.item), classname=f"{run.header.subject.name}.{result.id}",
                       time=f"{result.seconds:g}")  # fmt: skip
        words = f"added later, not counted: {result.outcome}: {_first(result.words)}"
        element(case, "skipped", type="added later", message=words)
    closing = element(suite, "testcase", name="verdict", classname=f"{run.header.subject.name}.rankproof", time="0")
    if verdict.exit_code:
        told = element(closing, "failure", type=verdict.word, message=headline(verdict))
        told.text = "\n".join([headline(verdict), *(f"{fault.kind}: {fault.words}" for fault in verdict.faults)])
    totals = {
        "tests": len(verdict.results) + len(verdict.added) + 1,
        "failures": verdict.counts["violated"] + bool(verdict.exit_code),
        "errors": verdict.counts["broken"],
        "skipped": sum(verdict.counts[each] for each in ("deviates", "not offered", "untested", "not run"))
        + len(verdict.added),
    }
    for each in (suites, suite):
        each.attrib |= {name: str(number) for name, number in totals.items()}
        each.set("time", f"{sum(result.seconds for result in verdict.results):.3f}")
    ElementTree.indent(suites)
    return "<?xml version='1.0' encoding='UTF-8'?>\n" + ElementTree.tostring(suites, encoding="unicode") + "\n"


def github(run: Run, verdict: Verdict) -> str:
    """GitHub's workflow commands, the verdict first: an error for each cause that is violated or broken, a warning for
    each reason why something was not judged, a notice for what deviates as declared. They stand at the stack's code
    that answered, where the record knows it."""
    kind = "error" if verdict.exit_code else "notice"
    faults = [f"{fault.kind}: {fault.words}" for fault in verdict.faults]
    lines = [_annotation(kind, {"title": "rankproof"}, "\n".join([headline(verdict), *faults]))]
    for level, kind in (("error", "error"), ("warning", "warning"), ("note", "notice")):
        found = [cause for cause in causes(run, verdict.results) if _LEVELS.get(cause.outcome) == level]
        for number, cause in enumerate(found[:_ANNOTATED], start=1):
            left = len(found) - number if number == _ANNOTATED else 0
            more = [f"{counted(left, 'cause')} more: see report.html"] if left else []
            first = cause.results[0]
            title = _title(cause)
            where = place(run, first)
            at = {} if where is None else {"file": where[0], "line": str(where[1])}
            lines.append(_annotation(kind, at | {"title": title}, "\n".join([_told(run, cause), *more])))
    return "\n".join(lines) + "\n"


def check_run(run: Run, verdict: Verdict) -> str:
    """The bodies of GitHub's calls for a check run, a line each: the first makes it, the others bring further
    annotations. Who sends them adds `head_sha`. A cause whose place is in no file of the repository is in the summary.
    """
    found = [cause for cause in causes(run, verdict.results) if cause.outcome in _LEVELS]
    placed = [_annotated(run, cause) for cause in found if _in_repository(run, cause)]
    ranks = f" on {run.header.ranks} ranks" if run.header.ranks > 1 else ""
    body = {
        "name": f"rankproof: {run.header.subject.name}, {verdict.profile}{ranks}",
        "status": "completed",
        "conclusion": "failure" if verdict.exit_code else "success",
    }
    told = {"title": cut(headline(verdict), _TITLE), "summary": cut(comment(run, verdict), _SUMMARY)}
    calls = [placed[at : at + _A_CALL] for at in range(0, len(placed), _A_CALL)] or [[]]
    lines = [json.dumps(body | {"output": told | {"annotations": each}}, ensure_ascii=False) for each in calls]
    return "\n".join(lines) + "\n"


def code_quality(run: Run, verdict: Verdict) -> str:
    """GitLab's report of code quality: an entry for the verdict and for each cause. GitLab compares the fingerprints
    with those of the target branch, and shows what is new and what is mended."""
    words = "\n".join([headline(verdict), *(f"{fault.kind}: {fault.words}" for fault in verdict.faults)])
    shape = "\n".join([run.header.subject.name, verdict.profile, str(run.header.ranks), verdict.word])
    body = [_entry("rankproof", words, "blocker" if verdict.exit_code else "info", shape, _RECORD)]
    for cause in (each for each in causes(run, verdict.results) if each.outcome in _LEVELS):
        words, severity = f"{_title(cause)}\n{_told(run, cause)}", _SEVERITIES[_LEVELS[cause.outcome]]
        body.append(_entry(cause.ids[0], words, severity, _shape(cause), _at(run, cause)))
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def sarif(run: Run, verdict: Verdict) -> str:
    """One result a cause: what is violated or broken is an error, what was not judged a warning, what deviates as
    declared is suppressed. A cause whose code is not known stands at the record, because code scanning demands a place.
    """
    found = [cause for cause in causes(run, verdict.results) if cause.outcome in _LEVELS]
    ids = list(dict.fromkeys(cause.ids[0] for cause in found))
    body = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "rankproof", "version": run.header.suite,
                                    "rules": [_rule(run, id) for id in ids]}},
                "automationDetails": {"id": f"rankproof/{run.header.subject.name}/{verdict.profile}/"},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "commandLine": " ".join(run.header.command),
                        "startTimeUtc": run.header.started.replace("+00:00", "Z"),
                        "exitCode": verdict.exit_code,
                        "exitCodeDescription": headline(verdict),
                        "executionSuccessful": verdict.word != "broken",
                        "toolExecutionNotifications": [
                            {"level": "error", "message": {"text": f"{fault.kind}: {fault.words}"}}
                            for fault in verdict.faults
                        ],
                    }
                ],
                "results": [_result(run, cause, ids) for cause in found],
            }
        ],
    }  # fmt: skip
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _rule(run: Run, id: str) -> dict[str, Any]:
    contract, statement = LAW.contracts.get(id), run.plan.promises.get(id)
    short = statement.promise if statement else id
    story = contract.story if contract else ""
    return {"id": id, "shortDescription": {"text": short}, "fullDescription": {"text": story or short},
            "help": {"text": f"rankproof explain {id}"}}  # fmt: skip


def _result(run: Run, cause: Cause, ids: list[str]) -> dict[str, Any]:
    first, where = cause.results[0], _at(run, cause)
    told: dict[str, Any] = {
        "ruleId": first.id,
        "ruleIndex": ids.index(first.id),
        "kind": "fail",
        "level": _LEVELS[cause.outcome],
        "message": {"text": f"{_title(cause)}\n{_told(run, cause)}"},
        "occurrenceCount": len(cause.results),
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(where[0])}, "region": {"startLine": where[1]}},
                "logicalLocations": [{"fullyQualifiedName": str(first.item)}],
            }
        ],
        # The same cause is the same alert in the next run: its values may change, its shape does not.
        "partialFingerprints": {"rankproofCause/v1": _digest(_shape(cause))},
    }
    if cause.outcome == "deviates":
        told["suppressions"] = [{"kind": "external", "justification": cause.words.rpartition("\n")[2]}]
    return told


def _annotated(run: Run, cause: Cause) -> dict[str, Any]:
    (file, line), level = _at(run, cause), _ANNOTATIONS[_LEVELS[cause.outcome]]
    return {"path": file, "start_line": line, "end_line": line, "annotation_level": level,
            "title": cut(_title(cause), _TITLE), "message": _told(run, cause)}  # fmt: skip


def _entry(name: str, words: str, severity: str, shape: str, at: tuple[str, int]) -> dict[str, Any]:
    location = {"path": at[0], "lines": {"begin": at[1]}}
    return {"check_name": name, "description": words, "severity": severity, "fingerprint": _digest(shape),
            "location": location}  # fmt: skip


def _at(run: Run, cause: Cause) -> tuple[str, int]:
    return place(run, cause.results[0]) or _RECORD


def _in_repository(run: Run, cause: Cause) -> bool:
    at = place(run, cause.results[0])
    return at is not None and not Path(at[0]).is_absolute()


def _shape(cause: Cause) -> str:
    return "\n".join([cause.outcome, *cause.ids, *cause.questions, cause.skeleton])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _uri(file: str) -> str:
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file)


def _title(cause: Cause) -> str:
    first, others = cause.results[0].item, len(cause.results) - 1
    return f"{first}{f' and {others} more' if others else ''}: {cause.outcome}"


def _told(run: Run, cause: Cause) -> str:
    first: Result = cause.results[0]
    lines = [f"{label}: {cut(words, _LONGEST)}" for label, words in details(run, first)]
    return "\n".join([*lines, f"items: {items(cause, _ITEMS)}"] if len(cause.results) > 1 else lines)


def _annotation(kind: str, properties: Mapping[str, str], message: str) -> str:
    told = ",".join(f"{name}={annotation_property(value)}" for name, value in properties.items())
    return f"::{kind} {told}::{annotation(message)}"


def _first(words: str) -> str:
    return words.split("\n", 1)[0]
