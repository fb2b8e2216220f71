"""Commands share this: how they end, where a stack may print, and how a verdict is shown."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import ParamSpec

import click

from contracts.court.party import Broken
from contracts.court.plain_text import MOST_LINES, terminal, words
from contracts.court.report import WIDTH
from contracts.harness.progress import moves
from contracts.harness.supervisor import Ended, Stopped
from contracts.spec import NotOffered, Refused, Unreachable, interpreter, refuse
from contracts.spec.records import EXIT_CODES, USAGE_ERROR, Form, Word
from contracts.spec.redaction import redact, redact_words, secrets_here

P = ParamSpec("P")
VERBOSE = "List every cause, item and id that the profile leaves outside, instead of counting them."
AS_JSON = "The same as --form json."
INTERRUPTED = 130
COLOURS: dict[Word, str] = {"conformant": "green", "incomplete": "yellow", "broken": "magenta"}


def one_clear_error(command: Callable[P, None]) -> Callable[P, None]:
    """Print bad input as refusals and exit with 2; a party that cannot be reached as its reason, with 3; one that
    breaks as its words, with 4."""

    @wraps(command)
    def guarded(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            code = told(lambda: command(*arguments, **named))
        except KeyboardInterrupt:  # click would end with 1, which means violated
            _say("interrupted")
            code = INTERRUPTED
        sys.exit(code)

    return guarded


@contextlib.contextmanager
def the_stack_talks_to_stderr() -> Iterator[None]:
    """Standard output is the report's, whatever a stack prints while it is loaded or asked, in Python or below it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def told(work: Callable[[], int | None]) -> int:
    try:
        interpreter.refuse_without_assertions()
        return work() or 0
    except Refused as refused:
        for refusal in refused.refusals[:MOST_LINES]:
            _say(str(refusal))
        if len(refused.refusals) > MOST_LINES:
            _say(f"and {len(refused.refusals) - MOST_LINES} more")
        return USAGE_ERROR
    except NotOffered as declined:
        _say(f"not offered: {declined}")
        return USAGE_ERROR
    except Unreachable as error:
        _say(str(error))
        return EXIT_CODES["incomplete"]
    except Stopped as error:
        click.echo(f"rankproof: {error}", err=True)
        return error.exit_code
    except (Broken, Ended, ModuleNotFoundError) as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        if getattr(missing, "name", None) == "torch" and find_spec("torch") is None:
            _say("torch is not installed, and this command needs it: `pip install torch`, as a training run has it")
            return USAGE_ERROR
        if isinstance(error, ModuleNotFoundError):
            raise
        _say(str(error))
        return EXIT_CODES["broken"]


def show(text: str) -> None:
    """Print what may quote a file, a package or pip, without secrets."""
    click.echo(redact(text, secrets_here(os.environ, sys.argv)))


def show_json(body: object) -> None:
    """The same, as JSON."""
    click.echo(json.dumps(_clean(body, secrets_here(os.environ, sys.argv)), indent=2, allow_nan=False))


def _clean(body: object, known: frozenset[str]) -> object:
    if isinstance(body, str):
        return redact(body, known)
    if isinstance(body, dict):
        return {name: _clean(each, known) for name, each in body.items()}
    if isinstance(body, list) and all(isinstance(each, str) for each in body):
        return [*redact_words(body, known)]
    return [_clean(each, known) for each in body] if isinstance(body, list) else body


def _say(text: str) -> None:
    """An error on a terminal, without secrets; it may quote a stack."""
    clean = words(f"rankproof: {text}", secrets_here(os.environ, sys.argv))
    with contextlib.suppress(OSError):  # a closed terminal, or a log on a full disk, has no say in the exit code
        clear = "\r\x1b[K" if moves(sys.stderr) else ""  # the line of progress, which the process that waits shows
        click.echo(clear + terminal(clean), err=True)


@contextlib.contextmanager
def whoever_listens() -> Iterator[None]:
    """Print; that nobody reads on (`| head`) has no say in the exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still held would fail again at the end


def print_report(text: str, word: Word, form: Form) -> None:
    """Print a rendering; on a terminal its last line, the verdict, is coloured."""
    with whoever_listens():
        if form != "terminal":
            click.echo(text, nl=False)
            return
        body, _, last = text.rstrip("\n").rpartition("\n")
        if body:
            click.echo(body)
        click.secho(last, fg=COLOURS.get(word, "red"), bold=True)


def written_to(file: Path, text: str, option: str) -> None:
    """Write what an option asked for.

    Raises:
        Refused: where it cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise refuse(option, str(file), problem, "give a file in a folder that exists") from None


def terminal_width() -> int:
    """Columns of the terminal; of a pipe or a log, what a report has by default."""
    return shutil.get_terminal_size(fallback=(WIDTH, 24)).columns


def short(value: object, *, quote: bool = True) -> str:
    text = repr(value) if quote else str(value).replace("\n", " ")
    return text if len(text) <= 160 else f"{text[:150]}…"
