"""`check --at BASE..HEAD`: both sides judged by the same options, each in processes of its own, and the difference."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from contracts.court import base_and_head, record
from contracts.court.plain_text import terminal
from contracts.harness.commands._errors import print_report, show_json
from contracts.harness.supervisor import Ended, Stopped, stopping
from contracts.ranks.guard_program import SET_PDEATHSIG, prctl
from contracts.spec import refuse
from contracts.spec.interpreter import python
from contracts.spec.records import EXIT_CODES, USAGE_ERROR, Form, Run
from contracts.spec.redaction import redact, secrets_here

_OURS = ("--at", "--report", "--form")  # with what follows; each side has its own
_FLAGS = ("--json", "-v", "--verbose")
FILES = ("change.txt", "change.json")


def judged(sides: tuple[str, str], folder: Path, form: Form, baseline: Path | None) -> int:
    """Judge both sides into `folder/base` and `folder/head`, print the difference and return its exit code.

    Raises:
        Refused: for a baseline beside two sides, a form that the difference has not, and what a side refuses.
        Ended: if a side has left no record.
        Stopped: by a signal; what the side that was judged has found until then is printed.
    """
    if baseline is not None:
        raise refuse("--baseline", str(baseline), "does not go with two sides", "leave it out: the base is one")
    if form not in ("terminal", "json"):
        problem = "is no form of a difference"
        raise refuse("--form", form, problem, f"take terminal or json; {folder}/head has every form of its side")
    runs = []
    with tempfile.TemporaryDirectory(prefix="rankproof-both-") as both:
        for name, at in zip(("base", "head"), sides, strict=True):
            code, run = _side(at, folder / name, both)
            if run is None:
                return code
            runs.append(run)
    change = base_and_head.difference(*runs)
    told, body = base_and_head.lines(change), json.dumps(base_and_head.as_json(change), indent=2, ensure_ascii=False)
    known = secrets_here({}, sys.argv)
    for name, text in zip(FILES, ("\n".join(told), body), strict=True):
        (folder / name).write_text(f"{redact(text, known)}\n", encoding="utf-8")
    if form == "json":
        show_json(base_and_head.as_json(change))
    else:
        print_report(terminal("\n".join([f"reports: {folder}/base, {folder}/head", *told])), change.word, form)
    return change.exit_code


def _side(at: str, folder: Path, both: str) -> tuple[int, Run | None]:
    """Judge one side; its record, or the exit code of what it refused. Its errors have been reported.

    Args:
        both: a folder in which the base leaves checkpoints for the head.
    """
    from contracts.law._support.saved_states import BOTH_SIDES

    words = [*_others(sys.argv[2:]), "--at", at, "--report", str(folder)]
    ends_with_us = partial(prctl, SET_PDEATHSIG, signal.SIGTERM)
    command, known = python("-m", "rankproof", "check", *words), {**os.environ, BOTH_SIDES: both}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=ends_with_us, env=known) as side,  # noqa: PLW1509 - no thread runs here
        stopping(side.pid) as stopped,
    ):
        printed, _ = side.communicate()
    if stopped:
        click.echo(printed, nl=False)  # what this side has found so far
        raise Stopped(stopped[0])
    if side.returncode == USAGE_ERROR:
        return USAGE_ERROR, None
    if not (folder / "run.jsonl").exists():
        if side.returncode == EXIT_CODES["incomplete"]:  # it could not be reached
            click.echo(f"rankproof: {at} could not be judged", err=True)
            return side.returncode, None
        raise Ended(f"{at} was judged without a verdict (exit code {side.returncode})")
    return side.returncode, record.load(folder)[0]


def _others(words: Sequence[str]) -> Iterator[str]:
    """The options that both sides have."""
    skipped = False
    for word in words:
        option, given, _ = word.partition("=")
        if skipped or option in _OURS or word in _FLAGS:
            skipped = not skipped and option in _OURS and not given
            continue
        yield word
