"""The answering side of `rankproof/1`: serves any stack in Python over standard input and output.

    python -m contracts.stacks.serve package.module:Name

Standard library only, so it runs in an environment that has this suite only on its `PYTHONPATH`.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from contracts.spec import (
    MOVED,
    Moved,
    NotOffered,
    Party,
    Refused,
    abilities_of,
    codec,
    declared_by,
    interpreter,
    questions,
    shown,
)
from contracts.spec.records import USAGE_ERROR
from contracts.stacks.kit.answering import answering_of
from contracts.stacks.protocol import HELLO, PROTOCOL, Introduction

USAGE = "usage: python -m contracts.stacks.serve package.module:Name"


def serve(party: Party, stdin: Iterable[str], stdout: TextIO) -> None:
    """Answer questions until the input ends. Never raises for an error of a question or of the stack."""
    for line in stdin:
        stdout.write(json.dumps(reply(party, line), separators=(",", ":"), allow_nan=False) + "\n")
        stdout.flush()


def reply(party: Party, line: str) -> dict[str, Any]:
    """The reply to one line, as a JSON object.

    `Refused` becomes `refused`, `NotOffered` becomes `not_offered`, and any other failure, of the line or of the stack,
    becomes `error`. An unreadable line is answered with id 0, which no question has.
    """
    try:
        message = codec.loads(dict[str, object], line, name="line")
    except Refused as refused:
        return {"protocol": PROTOCOL, "id": 0, "error": str(refused)}
    number = message.get("id")
    known = isinstance(number, int) and not isinstance(number, bool)
    head = {"protocol": PROTOCOL, "id": number if known else 0}
    try:
        return head | {"answer": _answer(party, message)}
    except Refused as refused:
        return head | {"refused": [codec.encode(refusal) for refusal in refused.refusals]}
    except NotOffered as declined:
        words = str(declined) or "the party declined without a reason"
        lack = MOVED if isinstance(declined, Moved) else declined.lack
        return head | {"not_offered": words} | ({} if lack == "adapter" else {"lack": lack})
    except Exception as error:
        return head | {"error": f"{type(error).__name__}: {error}"}


class Misasked(Exception):
    """The line is not a question of this protocol."""


def _answer(party: Party, message: dict[str, object]) -> object:
    if message.keys() != {"protocol", "id", "question", "arguments"} or message["protocol"] != PROTOCOL:
        raise Misasked(f"not a question of {PROTOCOL}: {shown(message)}")
    name, arguments = message["question"], message["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Misasked("question must be a string and arguments an object")
    if name == HELLO:
        return codec.encode(introduce(party))
    question = questions().get(name)
    if question is None:
        raise Misasked(f"there is no question {name!r}; questions are {', '.join(questions())}")
    if arguments.keys() != question.parameters.keys():
        raise Misasked(f"{name} takes {', '.join(question.parameters)}, not {', '.join(arguments) or 'nothing'}")
    if name not in party.offers:
        raise NotOffered(f"{party.name} does not offer {name}")
    values = {key: codec.decode(kind, arguments[key], name=key) for key, kind in question.parameters.items()}
    answer = question.ask(party, (), values)
    try:
        return codec.encode(answer)
    except Refused as refused:  # the party's fault, not the question's
        raise TypeError(f"{name} was answered with something that has no JSON form: {refused}") from None


def introduce(party: Party) -> Introduction:
    """The introduction of a party. One process serves many questions, so it is persistent."""
    return Introduction(
        name=party.name,
        version=party.version,
        offers=frozenset(party.offers),
        layouts=frozenset(party.layouts),
        labels=dict(party.labels),
        abilities=abilities_of(party),
        conventions=declared_by(party),
        answering=answering_of(party, "command"),
        persistent=True,
    )


def own_stdout() -> TextIO:
    """Take standard output for the protocol; later prints of other code go to standard error."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    return protocol


def load(path: str) -> Callable[[], Party]:
    """The class or function that makes a party, from `package.module:Name`.

    Raises:
        SystemExit: when the path has another form, or names nothing.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise SystemExit(USAGE)
    try:
        made: Callable[[], Party] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"{path}: {error}") from error
    return made


def main(arguments: list[str]) -> None:
    """Serve the named party over the process's own pipes."""
    if len(arguments) != 1:
        raise SystemExit(USAGE)
    try:
        interpreter.refuse_without_assertions()
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        raise SystemExit(USAGE_ERROR) from None
    with own_stdout() as stdout:
        sys.path.insert(0, "")
        serve(load(arguments[0])(), sys.stdin, stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
