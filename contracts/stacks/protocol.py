"""The wire protocol `rankproof/1`, with which a stack in another process is asked, and the JSON Schema of every line.

A question is one line of JSON and so is an answer. The questions come from `contracts.spec.stack`; arguments and
answers have the JSON form of `contracts.spec.codec`. One more question, `hello`, asks for an introduction. Standard
library only, because the answering side may have nothing else.

`python -m contracts.stacks.protocol FILE` writes the schema; the site has it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.spec import LACKS, MOVED, Abilities, Layout, Refusal, codec, questions
from contracts.spec.records import Answering

PROTOCOL = "rankproof/1"
HELLO = "hello"
OUTCOMES = ("answer", "refused", "not_offered", "error")
"""A reply has `protocol`, `id` and exactly one of these."""


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """The answer to `hello`: the party's name and abilities, and whether one process answers several questions.

    Args:
        offers: names of the questions it answers.
        labels: question → how its answers come about, where that is not simply the code under test.
        abilities: what it can build; None when it declares nothing.
        conventions: its choices where correct stacks differ; the first one where it names none.
        answering: the code that answers, and what runs it.
        persistent: one process reads questions line by line until its input ends; otherwise each question has its own.
    """

    name: str
    version: str
    offers: frozenset[str]
    layouts: frozenset[Layout]
    labels: Mapping[str, str] = field(default_factory=dict)
    abilities: Abilities | None = None
    conventions: Mapping[str, str] = field(default_factory=dict)
    answering: tuple[Answering, ...] = ()
    persistent: bool = False


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the protocol.

    `$defs` holds, for each question Q, `ask.Q` (the line that asks) and `reply.Q` (the line that answers), and every
    type they reach. `question`, `answer` and `no_answer` are what those lines have in common. The schema itself accepts
    any of these lines.
    """
    definitions: dict[str, Any] = {}
    bodies = {**_reaching(tuple[Refusal, ...], definitions), "minItems": 1}, {"type": "string"}, {"type": "string"}
    others = [_line(**{outcome: body}) for outcome, body in zip(OUTCOMES[1:], bodies, strict=True)]
    others[OUTCOMES.index("not_offered") - 1]["properties"]["lack"] = {"enum": [*LACKS, MOVED]}  # "adapter" if left out
    definitions["no_answer"] = {"oneOf": others}
    definitions["answer"] = _line(answer={})
    definitions["question"] = _line(question={"type": "string"}, arguments={"type": "object"})
    asked: dict[str, tuple[Mapping[str, Any], Any]] = {HELLO: ({}, Introduction)}
    asked |= {name: (question.parameters, question.answer) for name, question in questions().items()}
    lines = []
    for name, (parameters, answer) in asked.items():
        arguments = {
            "properties": {key: _reaching(kind, definitions) for key, kind in parameters.items()},
            "required": list(parameters),
            "additionalProperties": False,
        }
        asks = {"question": {"const": name}, "arguments": arguments}
        definitions[f"ask.{name}"] = {"$ref": "#/$defs/question", "properties": asks}
        answered = {"$ref": "#/$defs/answer", "properties": {"answer": _reaching(answer, definitions)}}
        definitions[f"reply.{name}"] = {"oneOf": [answered, {"$ref": "#/$defs/no_answer"}]}
        lines += [{"$ref": f"#/$defs/ask.{name}"}, {"$ref": f"#/$defs/reply.{name}"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": PROTOCOL,
        "description": "Every line of the protocol, one JSON object each. Generated from the types; do not edit.",
        "anyOf": lines,
        "$defs": dict(sorted(definitions.items())),
    }


def _line(**body: dict[str, Any]) -> dict[str, Any]:
    properties = {"protocol": {"const": PROTOCOL}, "id": {"type": "integer"}, **body}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _reaching(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; the types that it uses go into the shared definitions."""
    body = codec.schema(kind)
    definitions.update(body.pop("$defs"))
    del body["$schema"]
    return body


def schema_text() -> str:
    """The text of the schema file."""
    return codec.laid_out(schema()) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m contracts.stacks.protocol FILE")
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
