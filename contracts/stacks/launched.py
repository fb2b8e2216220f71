"""A stack that a command serves that reads a question as a line of JSON and prints the answer as a line of JSON.

This puts a stack in another environment or language under test. A shell launcher needs some twenty lines
(`docs/examples/shell_launcher/`), a Python stack one (`python -m contracts.stacks.serve package.module:Name`).

The command may take its time, up to a deadline for each question. But anything except exactly one legal reply (noise on
standard output, another id, an answer of another type, an exit code) raises `Unreachable`. A failure of the command is
never a violation, and never a pass.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from contracts.spec import (
    LACKS,
    MOST_REFUSALS,
    MOVED,
    Abilities,
    Lack,
    Layout,
    Moved,
    NotOffered,
    Question,
    Refusal,
    Refused,
    Unreachable,
    codec,
    declared_by,
    questions,
    shown,
)
from contracts.spec.records import Answering
from contracts.stacks.line_process import Failed, Running
from contracts.stacks.protocol import HELLO, OUTCOMES, PROTOCOL, Introduction

TIMEOUT_S = 60.0
LIMIT_BYTES = 32 * 2**20  # the groups of 65 536 ranks on nine axes take 4 MiB

_Answerer = Callable[..., Any]


class Launched:
    """A stack that a command serves. Every question of `contracts.spec.stack` is a method.

    By default every question starts the command anew; it reads one line and ends. A command whose `hello` says
    `persistent` is started a second time and then kept: it answers line by line until its input is closed or it fails a
    question. After a failure the next question starts a new process.

    Args:
        command: the words of the command; there is no shell.
        cwd: its working directory.
        env: variables added to the inherited environment, or replacing it when `inherit` is False.
        persistent: the command is known to persist, so the process that answers `hello` is kept.
        timeout_s: seconds that a question may take; then the whole process group is killed.
        limit_bytes: maximal length of a reply.

    Raises:
        Unreachable: when the command cannot be started, or its introduction is not legal.
    """

    name: str
    version: str
    offers: frozenset[str]
    layouts: frozenset[Layout]
    labels: Mapping[str, str]
    abilities: Abilities | None
    conventions: Mapping[str, str]
    answering: tuple[Answering, ...]

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: bool = True,
        persistent: bool = False,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        if isinstance(command, str) or not command:
            raise ValueError(f"command must be a sequence of words, not {shown(command)}")
        self.command = tuple(command)
        self.timeout_s = timeout_s
        self.limit_bytes = limit_bytes
        self._cwd = Path(cwd) if cwd is not None else None
        self._env = dict(env or {})
        self._inherit = inherit
        self._number = 0
        self._persistent = persistent
        self._running: Running | None = None
        self._complaint = ""
        self._introduce(self._hello())

    def __getattr__(self, name: str) -> _Answerer:
        question = questions().get(name)
        if question is None:
            raise AttributeError(f"{type(self).__name__} has no {name!r}, and it is no question")
        return lambda *arguments, **named: self._ask(question, arguments, named)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """End the kept command, if there is one. The next question starts it again."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _hello(self) -> object:
        return self._put(HELLO, {})

    def _introduce(self, answer: object) -> None:
        try:
            said = codec.decode(Introduction, answer, name=HELLO)
        except Refused as refused:
            self._fail(f"did not introduce itself properly: {_first(refused)}")
        strangers = sorted((said.offers | said.labels.keys()) - questions().keys())
        if strangers:
            self._fail(f"offers {', '.join(strangers)}, which nobody asks; questions are {', '.join(questions())}")
        if not said.name or not said.version:
            self._fail("introduced itself without a name or a version")
        self.name, self.version, self.abilities = said.name, said.version, said.abilities
        try:
            self.conventions = declared_by(said)
        except Refused as refused:
            self._fail(f"declares what is no convention: {_first(refused)}")
        self.offers, self.layouts, self.labels = said.offers, said.layouts, dict(said.labels)
        self.answering = said.answering
        if self._persistent and not said.persistent:
            self._fail("was said to persist, but does not claim it")
        self._persistent = said.persistent

    def _ask(self, question: Question, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Ask a question.

        Raises:
            Refused: the stack refuses the input.
            NotOffered: it does not answer this question, or not for this input.
            Unreachable: the command or the protocol failed.
            TypeError: the arguments are not those of the question.
        """
        if question.name not in self.offers:
            raise NotOffered(f"{self.name} does not offer {question.name}")
        answer = self._put(question.name, _bind(question, arguments, named))
        try:
            return codec.decode(question.answer, answer, name=question.name)
        except Refused as refused:
            kind = getattr(question.answer, "__name__", str(question.answer))
            self._fail(f"answered {question.name} with something that is not a {kind}: {_first(refused)}")

    def _put(self, name: str, arguments: Mapping[str, object]) -> object:
        """The `answer` of one exchange, not yet decoded."""
        self._number += 1
        asked = {"protocol": PROTOCOL, "id": self._number, "question": name, "arguments": arguments}
        line = (codec.dumps(asked) + "\n").encode("ascii")
        said = self._exchange(line, name)
        try:
            return self._open(said)
        except Unreachable:
            self.close()  # its next output cannot be trusted
            raise

    def _exchange(self, line: bytes, name: str) -> bytes:
        running = self._current()
        try:
            said = running.exchange(line, seconds=self.timeout_s, limit=self.limit_bytes, last=not self._persistent)
        except Failed as failed:
            running.end()
            self._running = None
            self._complaint = running.complaint()
            self._fail(f"{failed} (asked {name})")
        except BaseException:  # an alarm or an interrupt: the command is in the middle of an answer
            running.end()
            self._running = None
            raise
        self._complaint = running.complaint()
        if not self._persistent:
            running.end()
        return said

    def _current(self) -> Running:
        """The command that answers next: the kept one if it is alive and ours, otherwise a new one."""
        if self._running is not None and self._running.owner == os.getpid() and self._running.alive():
            return self._running
        if self._running is not None:
            self.close()
        try:
            running = Running(self.command, self._cwd, {**(os.environ if self._inherit else {}), **self._env})
        except OSError as error:
            raise Unreachable(f"{self._called()} cannot be started: {error}") from error
        if self._persistent:
            self._running = running
            weakref.finalize(self, running.end)
        return running

    def _open(self, said: bytes) -> object:
        """Check the envelope of a reply and return its content."""
        try:
            reply = codec.loads(dict[str, object], said.decode("utf-8"), name="reply")
        except UnicodeDecodeError as error:
            self._fail(f"printed something that is not UTF-8: {error}")
        except Refused as refused:
            self._fail(f"printed something else than a reply: {_first(refused)}")
        outcomes = [key for key in OUTCOMES if key in reply]
        also = {"lack"} if outcomes == ["not_offered"] and "lack" in reply else set()
        if len(outcomes) != 1 or reply.keys() != {"protocol", "id", *outcomes, *also}:
            wanted = f"protocol, id and one of {', '.join(OUTCOMES)}"
            self._fail(f"sent a reply with {', '.join(reply) or 'nothing'}; it must have {wanted}")
        if reply["protocol"] != PROTOCOL:
            self._fail(f"speaks {shown(reply['protocol'])}, not {PROTOCOL}")
        if type(reply["id"]) is not int or reply["id"] != self._number:
            detail = f": {reply['error']}" if "error" in reply else ""
            self._fail(f"replied to id {shown(reply['id'])} instead of {self._number}{detail}")
        [outcome] = outcomes
        if outcome == "answer":
            return reply["answer"]
        return self._declined(outcome, reply[outcome], reply.get("lack", "adapter"))

    def _declined(self, outcome: str, body: object, lack: object) -> NoReturn:
        if outcome == "refused":
            if isinstance(body, list) and len(body) > MOST_REFUSALS:
                self._fail(f"refused for {len(body)} reasons; at most {MOST_REFUSALS} are read")
            try:
                refusals = codec.decode(tuple[Refusal, ...], body, name="refused")
            except Refused as refused:
                self._fail(f"refused without saying what: {_first(refused)}")
            if not refusals:
                self._fail("refused without a reason")
            raise Refused(refusals)
        if not isinstance(body, str) or not body:
            self._fail(f"gave {shown(body)} as the reason of {outcome}")
        if outcome == "not_offered":
            if lack == MOVED:
                raise Moved(body)
            if lack not in LACKS:
                self._fail(f"gave {shown(lack)} as the kind of not_offered; the kinds are {', '.join(LACKS)}")
            raise NotOffered(body, cast(Lack, lack))
        self._fail(f"failed: {body}")

    def _called(self) -> str:
        return self.__dict__.get("name") or shown(" ".join(self.command))

    def _fail(self, words: str) -> NoReturn:
        quoted = f"; its stderr ends: {self._complaint}" if self._complaint else ""
        raise Unreachable(f"{self._called()} {words}{quoted}")


def _bind(question: Question, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and named arguments as one object, in the order of the question."""
    names = tuple(question.parameters)
    if len(arguments) > len(names):
        raise TypeError(f"{question.name} takes {len(names)} arguments ({', '.join(names)}), not {len(arguments)}")
    bound = dict(zip(names, arguments, strict=False))
    twice = bound.keys() & named.keys()
    bound.update(named)
    wrong = bound.keys() ^ set(names)
    if twice or wrong:
        raise TypeError(f"{question.name} takes {', '.join(names)}; wrong: {', '.join(sorted(twice | wrong))}")
    return {name: bound[name] for name in names}


def _first(refused: Refused) -> str:
    more = len(refused.refusals) - 1
    return f"{refused.refusals[0]}" + (f" (and {more} more)" if more else "")
